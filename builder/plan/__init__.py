"""The stage that decides which images there are: pure functions from a project to a plan."""

from __future__ import annotations

from builder.errors import BadInput, Fault
from builder.model import LeftOut, Plan, PlannedImage, Project, Selection
from builder.plan.cells import selected_cells
from builder.plan.constraints import Constraints
from builder.plan.images import Images
from builder.plan.selection import check_selection, nothing_selected

__all__ = ["make_plan"]


def make_plan(
    project: Project, selection: Selection, *, compiler: str, may_be_empty: bool = False
) -> Plan:
    """The selected images in build order, parents before children.

    `compiler` names what compiles specs, with its version: it is a part of every content key.
    Raises `EmptySelection` when a selector matches nothing, or, unless the plan `may_be_empty`,
    when every cell that was asked for is left out; `BadInput` when a template cannot be rendered
    for a cell.
    """
    check_selection(project, selection)
    images: list[PlannedImage] = []
    left_out: list[LeftOut] = []
    faults: list[Fault] = []
    constraints = Constraints(project)
    planned = Images(project, compiler)
    for cell in selected_cells(project, selection):
        verdict = constraints.examine(cell)
        if verdict.reasons:
            left_out.append(LeftOut(cell=cell, reasons=verdict.reasons))
        else:
            images.extend(planned.of(cell, verdict, faults))
    if faults:
        raise BadInput.of(faults)
    if not images and not may_be_empty:
        raise nothing_selected(project, left_out)
    return Plan(images=tuple(images), left_out=tuple(left_out))
