"""Selectors, checked against the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from builder.facts import CPU_TARGETS as TARGETS_BY_ARCH
from builder.facts.versions import matches
from builder.model import GENERIC, SELECTABLE, LeftOut, Project, Selection
from builder.model.errors import EmptySelection
from builder.plan.cells import all_cells
from builder.plan.grouping import MANY, by_reason

CPU_TARGETS = (GENERIC, *(name for names in TARGETS_BY_ARCH.values() for name in names))


def check_selection(project: Project, selection: Selection) -> None:
    """Raise `EmptySelection` for each selector that matches nothing, with what there is."""
    problems = [
        _unmatched(axis, pattern, values)
        for axis, patterns in selection.patterns.items()
        for values in [axis_values(project, axis)]
        for pattern in patterns
        if not any(matches(axis, pattern, value) for value in values)
    ]
    problems += _unmatched_images(project, selection)
    problems += [
        _unmatched("cpu-target", target, CPU_TARGETS)
        for target in selection.cpu_targets
        if target not in CPU_TARGETS
    ]
    if problems:
        raise EmptySelection("\n".join(problems))


def _unmatched_images(project: Project, selection: Selection) -> list[str]:
    """Return a problem for each glob that matches no identifier."""
    globs = selection.images
    cells = all_cells(project, selection, images=globs) if globs else ()
    near = [cell.identifier for cell in cells]
    lost = [glob for glob in globs if not any(fnmatchcase(name, glob) for name in near)]
    known = [cell.identifier for cell in all_cells(project, selection)] if lost else []
    return [_unmatched("image", glob, known) for glob in lost]


def axis_values(project: Project, axis: str) -> tuple[str, ...]:
    """The values that exist on an axis, or the names of the recipes."""
    return tuple(project.recipes) if axis == "recipe" else project.matrix.axes[axis]


def nothing_selected(project: Project, left_out: Sequence[LeftOut]) -> EmptySelection:
    """The error for a selection in which nothing can be built, with all reasons and values."""
    lines = ["all that was selected is left out:" if left_out else "nothing is selected."]
    if len(left_out) > MANY:
        for text, cells in by_reason(left_out):
            lines += [f"  {text}", *(f"    {line}" for line in cells)]
    else:
        lines += [
            f"  {entry.cell.identifier}: {reason}" for entry in left_out for reason in entry.reasons
        ]
    lines += [f"  {axis}: {', '.join(axis_values(project, axis))}" for axis in SELECTABLE]
    return EmptySelection("\n".join(lines), hint="'build-images explain --all' shows every cell")


def _unmatched(axis: str, pattern: str, values: Sequence[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

    close = get_close_matches(pattern, values, n=1)
    guess = f"; did you mean {close[0]}?" if close else ""
    shown = [*values[:20], "..."] if len(values) > 20 else values  # noqa: PLR2004 - a screenful
    return f"--{axis} {pattern}: matches nothing{guess}\n  {axis}: {', '.join(shown)}"
