"""The cells of the matrix, and the patterns that select some of them."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from builder.facts.versions import matches
from builder.model import Cell, Project, Selection

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
