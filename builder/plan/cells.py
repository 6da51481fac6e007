"""Which cells there are, and which of them patterns match."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from builder.model import Cell, Project, Selection
from builder.versions import matches


def all_cells(project: Project, selection: Selection | None = None) -> Iterator[Cell]:
    """Every combination of axis values and recipes, parents before their children.

    Each is there once for each flavour and each CPU target of the selection.
    """
    axes, asked = project.matrix.axes, selection or Selection()
    by_depth = sorted(project.recipes, key=lambda name: (len(project.chain(name)), name))
    for name, base, cuda, mpi, flavour, cpu, arch in itertools.product(
        by_depth,
        axes["base"],
        axes["cuda"],
        axes["mpi"],
        asked.flavours,
        asked.cpu_targets,
        axes["arch"],
    ):
        version = project.recipes[name].version
        yield Cell(
            recipe=name,
            recipe_version=version,
            base=base,
            cuda=cuda,
            mpi=mpi,
            arch=arch,
            flavour=flavour,
            cpu=cpu,
        )


def any_matches(axis: str, patterns: tuple[str, ...], cell: Cell) -> bool:
    """Whether one of `patterns` matches the cell's value of an axis, or its recipe."""
    return any(matches(axis, pattern, cell.axis(axis)) for pattern in patterns)


def fits(cell: Cell, patterns: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether a cell has, on each axis that is named, a value that a pattern matches."""
    return all(any_matches(axis, some, cell) for axis, some in patterns.items() if some)
