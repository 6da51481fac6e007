"""Plan: decide which images to build, with pure functions from a project to a plan."""

from __future__ import annotations

from collections.abc import Callable

from builder.model import BlockUse, LeftOut, Plan, PlannedImage, Project, Reason, Selection
from builder.model.errors import BadInput
from builder.plan.cells import Constraints, check_selection, nothing_selected, selected_cells
from builder.plan.images import Images
from builder.plan.routes import WORLD

__all__ = ["make_plan"]

# Returns why a block with rendered arguments does not support an architecture, an hpccm
# distribution and a distribution; empty if it does.
LimitReason = Callable[[BlockUse, str, str, str], str]


def make_plan(
    project: Project,
    selection: Selection,
    *,
    compiler: str,
    limit_reason: LimitReason = lambda *_: "",
    may_be_empty: bool = False,
    images_only: bool = False,
) -> Plan:
    """Return the selected images in build order, parents before children.

    `compiler` is the name and version of the spec compiler, a part of every content key.
    `limit_reason` returns why a block does not support a cell; such a cell is left out.
    Raises `EmptySelection` if a selector matches nothing, or if all selected cells are left out
    and not `may_be_empty`; raises `BadInput` if a template cannot be rendered for a cell.
    With `images_only`, `left_out` is empty, and most cells that are left out are not examined.
    """
    check_selection(project, selection)
    images: list[PlannedImage] = []
    left_out: list[LeftOut] = []
    constraints = Constraints(project)
    planned = Images(project, compiler)
    for cell in selected_cells(project, selection, within_limits=images_only):
        reasons = constraints.reasons(cell)
        if not reasons:
            image = planned.of(cell, constraints.toolkits(cell))
            reasons = _limits(image, limit_reason)
            if not reasons:
                images.append(image)
        if reasons and not images_only:
            left_out.append(LeftOut(cell=cell, reasons=reasons))
    if planned.faults:
        raise BadInput.of(planned.faults)
    if not images and images_only and not may_be_empty:  # the error gives the reasons
        return make_plan(project, selection, compiler=compiler, limit_reason=limit_reason)
    if not images and not may_be_empty:
        raise nothing_selected(project, selection, left_out)
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
