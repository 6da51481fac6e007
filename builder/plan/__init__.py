"""The stage that decides which images there are: pure functions from a project to a plan."""

from __future__ import annotations

from collections.abc import Callable

from builder.model import BlockUse, LeftOut, Plan, PlannedImage, Project, Reason, Selection
from builder.model.errors import BadInput
from builder.plan.cells import check_selection, nothing_selected, selected_cells
from builder.plan.constraints import Constraints
from builder.plan.images import Images
from builder.plan.routes import WORLD

__all__ = ["make_plan"]


# Why a block, its arguments rendered, does not work for an architecture, an hpccm distribution and
# a distribution; empty where it does.
LimitReason = Callable[[BlockUse, str, str, str], str]


def _no_limits(_: BlockUse, __: str, ___: str, ____: str) -> str:
    return ""


def make_plan(
    project: Project,
    selection: Selection,
    *,
    compiler: str,
    limit_reason: LimitReason = _no_limits,
    may_be_empty: bool = False,
) -> Plan:
    """The selected images in build order, parents before children.

    `compiler` names what compiles specs, with its version: it is a part of every content key.
    `limit_reason` knows where hpccm's blocks work; a cell where one does not is left out.
    Raises `EmptySelection` when a selector matches nothing, or, unless the plan `may_be_empty`,
    when every cell that was asked for is left out; `BadInput` when a template cannot be rendered
    for a cell.
    """
    check_selection(project, selection)
    images: list[PlannedImage] = []
    left_out: list[LeftOut] = []
    constraints = Constraints(project)
    planned = Images(project, compiler)
    for cell in selected_cells(project, selection):
        verdict = constraints.examine(cell)
        image = None if verdict.reasons else planned.of(cell, verdict)
        reasons = _limits(image, limit_reason) if image else verdict.reasons
        if reasons:
            left_out.append(LeftOut(cell=cell, reasons=reasons))
        elif image:
            images.append(image)
    if planned.faults:
        raise BadInput.of(planned.faults)
    if not images and not may_be_empty:
        raise nothing_selected(project, left_out)
    return Plan(images=tuple(images), left_out=tuple(left_out))


def _limits(image: PlannedImage, limit_reason: LimitReason) -> tuple[Reason, ...]:
    base, arch = image.base, image.cell.arch
    texts = (
        f"block {use.name} ({use.where}): {reason}"
        for stage in image.stages
        for use in (*stage.development, *stage.runtime)
        if (reason := limit_reason(use, arch, base.hpccm_distro, base.distribution))
    )
    return tuple(Reason(layer=WORLD, text=text) for text in dict.fromkeys(texts))
