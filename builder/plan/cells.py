"""The cells of the matrix, and the patterns that select some of them."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from builder.model import GENERIC, SELECTABLE, Cell, LeftOut, Project, Selection
from builder.model.architectures import CPU_TARGETS as TARGETS_BY_ARCH
from builder.model.errors import EmptySelection
from builder.model.planned import MANY, by_reason
from builder.model.versions import matches

_WILD = re.compile(r"[*?\[]")


def selected_cells(project: Project, selection: Selection) -> Iterator[Cell]:
    """The cells that are asked for, parents before their children.

    Without any selector, the matrix's default selection counts. Each combination of axis values
    and recipes is there once for each flavour and each CPU target of the selection. Axes are
    narrowed first: most of a matrix is never looked at.
    """
    chosen = bool(selection.everything or selection.patterns or selection.images)
    patterns = selection.patterns if chosen else project.matrix.default
    for cell in _product(project, selection, patterns, selection.images):
        if not selection.images or any(
            fnmatchcase(cell.identifier, glob) for glob in selection.images
        ):
            yield cell


def all_cells(
    project: Project, selection: Selection, *, images: Sequence[str] = ()
) -> Iterator[Cell]:
    """Every combination of axis values and recipes, in the selection's flavours and targets.

    With `images`, those that such a glob cannot match may be left out.
    """
    return _product(project, selection, {}, images)


def _product(
    project: Project,
    selection: Selection,
    patterns: Mapping[str, tuple[str, ...]],
    globs: Sequence[str],
) -> Iterator[Cell]:
    def values(axis: str, known: Iterable[str]) -> list[str]:
        only = patterns.get(axis)
        return [value for value in known if not only or any(matches(axis, p, value) for p in only)]

    axes, recipes = project.matrix.axes, project.recipes
    by_depth = sorted(recipes, key=lambda name: (len(project.chain(name)), name))
    heads = {_WILD.split(glob, maxsplit=1)[0] for glob in globs}
    # An identifier begins with recipe, version and base: few of a large matrix have a glob's head.
    starts = [
        (name, base)
        for name in values("recipe", by_depth)
        for base in values("base", axes["base"])
        if not heads or _begins(f"{name}-{recipes[name].version}-{base}", heads)
    ]
    for (name, base), cuda, mpi, flavour, cpu, arch in itertools.product(
        starts,
        values("cuda", axes["cuda"]),
        values("mpi", axes["mpi"]),
        selection.flavours,
        selection.cpu_targets,
        values("arch", axes["arch"]),
    ):
        yield Cell(
            recipe=name,
            recipe_version=recipes[name].version,
            base=base,
            cuda=cuda,
            mpi=mpi,
            arch=arch,
            flavour=flavour,
            cpu=cpu,
        )


def _begins(start: str, heads: Iterable[str]) -> bool:
    """True if a text that begins with `start` may begin with one of `heads`."""
    return any(head.startswith(start) or start.startswith(head) for head in heads)


def any_matches(axis: str, patterns: tuple[str, ...], cell: Cell) -> bool:
    """True if one of `patterns` matches the cell's value of an axis, or its recipe."""
    return _any_matches(axis, patterns, cell.axis(axis))


@functools.lru_cache(maxsize=65536)  # a matrix has thousands of cells, and few values on an axis
def _any_matches(axis: str, patterns: tuple[str, ...], value: str) -> bool:
    return any(matches(axis, pattern, value) for pattern in patterns)


def fits(cell: Cell, patterns: Mapping[str, tuple[str, ...]]) -> bool:
    """True if a cell has, on each axis that is named, a value that a pattern matches."""
    return all(any_matches(axis, values, cell) for axis, values in patterns.items() if values)


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
