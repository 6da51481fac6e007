"""The plan of a selection; cells that hpccm cannot build are left out."""

from __future__ import annotations

from builder.compile.spec import COMPILER, limit_reason
from builder.model import Plan, Project, Selection
from builder.plan import make_plan


def plan_of(project: Project, selection: Selection, *, may_be_empty: bool = False) -> Plan:
    """Return the plan of a selection; raises as `builder.plan.make_plan` does."""
    return make_plan(
        project,
        selection,
        compiler=COMPILER,
        limit_reason=limit_reason,
        may_be_empty=may_be_empty,
    )
