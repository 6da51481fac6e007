"""The cells of the matrix, and their selection by patterns."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from builder.model import GENERIC, SELECTABLE, Cell, LeftOut, Project, Selection
from builder.model.architectures import CPU_TARGETS as TARGETS_BY_ARCH
from builder.model.errors import EmptySelection
from builder.model.planned import MANY, by_reason
from builder.model.versions import matches

_WILD = re.compile(r"[*?\[]")


def selected_cells(project: Project, selection: Selection) -> Iterator[Cell]:
    """Yield the selected cells, parents before their children.

    Without a selector, the matrix's default selection is used. Each combination of axis values
    and recipes is yielded once for each flavour and CPU target of the selection.
    """
    chosen = bool(selection.everything or selection.patterns or selection.images)
    patterns = selection.patterns if chosen else project.matrix.default
    globs = selection.images or ("*",)
    for cell in all_cells(project, selection, patterns, globs):
        if any(fnmatch.fnmatchcase(cell.identifier, glob) for glob in globs):
            yield cell


def all_cells(
    project: Project,
    selection: Selection,
    patterns: Mapping[str, tuple[str, ...]],
    globs: Sequence[str] = ("*",),
) -> Iterator[Cell]:
    """Yield each combination of axis values and recipes that match patterns.

    Flavours and CPU targets come from the selection. Most cells whose identifiers cannot match
    one of `globs` are skipped early, since a matrix may have 100,000 cells.
    """

    def values(axis: str) -> list[str]:
        only = patterns.get(axis)
        values = axis_values(project, axis)
        return [value for value in values if not only or any_matches(axis, only, value)]

    depths = {name: len(project.chain(name)) for name in project.recipes}
    starts = [
        (recipe, base)
        for recipe in sorted(values("recipe"), key=lambda name: (depths[name], name))
        for base in values("base")
        if _may_match(f"{recipe}-{project.recipes[recipe].version}-{base}", globs)
    ]
    variants = itertools.product(selection.flavours, selection.cpu_targets, values("arch"))
    products = itertools.product(starts, values("cuda"), values("mpi"), list(variants))
    for (recipe, base), cuda, mpi, (flavour, cpu, arch) in products:
        yield Cell(
            recipe=recipe,
            recipe_version=project.recipes[recipe].version,
            base=base,
            cuda=cuda,
            mpi=mpi,
            arch=arch,
            flavour=flavour,
            cpu=cpu,
        )


def _may_match(start: str, globs: Sequence[str]) -> bool:
    """Return whether an identifier that begins with `start` may match a glob."""
    heads = (_WILD.split(glob, maxsplit=1)[0] for glob in globs)
    return any(head.startswith(start) or start.startswith(head) for head in heads)


@functools.lru_cache(maxsize=65536)  # a matrix has thousands of cells, and few values on an axis
def any_matches(axis: str, patterns: tuple[str, ...], value: str) -> bool:
    """Return whether one of `patterns` matches a value of an axis or the name of a recipe."""
    return any(matches(axis, pattern, value) for pattern in patterns)


def fits(cell: Cell, patterns: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether a pattern matches the cell's value on each axis in `patterns`."""
    return all(
        any_matches(axis, values, cell.axis(axis)) for axis, values in patterns.items() if values
    )


CPU_TARGETS = (GENERIC, *(name for names in TARGETS_BY_ARCH.values() for name in names))


def check_selection(project: Project, selection: Selection) -> None:
    """Raise `EmptySelection` with all selectors that match nothing, and the existing values."""
    problems = [
        _unmatched(axis, pattern, values)
        for axis, patterns in selection.patterns.items()
        for values in [axis_values(project, axis)]
        for pattern in patterns
        if not any(matches(axis, pattern, value) for value in values)
    ]
    globs = selection.images
    matching = [cell.identifier for cell in all_cells(project, selection, {}, globs)]
    if unmatched := [glob for glob in globs if not fnmatch.filter(matching, glob)]:
        known = [cell.identifier for cell in all_cells(project, selection, {})]
        problems += [_unmatched("image", glob, known) for glob in unmatched]
    problems += [
        _unmatched("cpu-target", target, CPU_TARGETS)
        for target in selection.cpu_targets
        if target not in CPU_TARGETS
    ]
    if problems:
        raise EmptySelection("\n".join(problems))


def axis_values(project: Project, axis: str) -> tuple[str, ...]:
    """Return the values of an axis, or the names of the recipes."""
    return tuple(project.recipes) if axis == "recipe" else project.matrix.axes[axis]


def nothing_selected(project: Project, left_out: Sequence[LeftOut]) -> EmptySelection:
    """Return the error for a selection without a buildable cell, with all reasons and values."""
    lines = ["every selected cell is left out:" if left_out else "nothing is selected."]
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
    from difflib import get_close_matches  # noqa: PLC0415 - needed only for an error

    close = get_close_matches(pattern, values, n=1)
    guess = f"; did you mean {close[0]}?" if close else ""
    shown = [*values[:20], "..."] if len(values) > 20 else values  # noqa: PLR2004 - a screenful
    return f"--{axis} {pattern}: matches nothing{guess}\n  {axis}: {', '.join(shown)}"
