"""Which cells there are, and what speaks against one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from builder import facts
from builder.model import NONE, BaseImage, Cell, PackagedMpi, Project
from builder.versions import matches, split_mpi


def all_cells(project: Project) -> Iterator[Cell]:
    """Every combination of axis values and recipes, parents before their children."""
    axes = project.matrix.axes
    by_depth = sorted(project.recipes, key=lambda name: (len(project.chain(name)), name))
    for name, base, cuda, mpi, arch in itertools.product(
        by_depth, axes["base"], axes["cuda"], axes["mpi"], axes["arch"]
    ):
        version = project.recipes[name].version
        yield Cell(recipe=name, recipe_version=version, base=base, cuda=cuda, mpi=mpi, arch=arch)


def reasons_against(project: Project, cell: Cell) -> tuple[str, ...]:
    """Why a cell cannot or shall not be built: the recipe, the base, the maintainer."""
    base = project.bases[cell.base]
    return (
        *_recipe_reasons(project, cell),
        *_base_reasons(base, cell),
        *_maintainer_reasons(project, cell),
    )


def packaged_mpi(base: BaseImage, mpi: str) -> PackagedMpi | None:
    """The MPI of a base's distribution that answers an axis value (`openmpi5.0`: 5.0.7)."""
    if mpi == NONE:
        return None
    for packaged in base.mpi:
        if matches("mpi", mpi, packaged.family + packaged.version):
            return packaged
    return None


def _recipe_reasons(project: Project, cell: Cell) -> Iterator[str]:
    for recipe in project.chain(cell.recipe):
        for axis, patterns in recipe.limits.items():
            if not _any_matches(axis, patterns, cell):
                yield (
                    f"recipe {recipe.name} takes {axis} {', '.join(patterns)} "
                    f"({recipe.where.file}: axes.{axis})"
                )


def _base_reasons(base: BaseImage, cell: Cell) -> Iterator[str]:
    if cell.arch not in base.architectures:
        yield f"{base.name} exists for {', '.join(base.architectures)} ({base.where.file})"
    if cell.cuda != NONE and not _any_matches("cuda", base.cuda, cell):
        carried = f"CUDA {', '.join(base.cuda)}" if base.cuda else "no CUDA"
        yield f"{base.name} carries {carried}, not {cell.cuda} ({base.where.file}: cuda)"
    if cell.mpi != NONE and packaged_mpi(base, cell.mpi) is None:
        yield _other_mpi(base, cell)


def _other_mpi(base: BaseImage, cell: Cell) -> str:
    family, version = split_mpi(cell.mpi)
    title = facts.MPI_FAMILIES[family].title
    carried = [one.version for one in base.mpi if one.family == family]
    has = f"{title} {', '.join(carried)}" if carried else f"no {title}"
    return f"{base.name} packages {has}, not {version} ({base.where.file}: mpi.{family})"


def _maintainer_reasons(project: Project, cell: Cell) -> Iterator[str]:
    for exclude in project.matrix.excludes:
        if all(_any_matches(axis, patterns, cell) for axis, patterns in exclude.when.items()):
            yield f"{exclude.reason} ({exclude.where.file}:{exclude.where.line})"


def _any_matches(axis: str, patterns: tuple[str, ...], cell: Cell) -> bool:
    return any(matches(axis, pattern, cell.axis(axis)) for pattern in patterns)


def fits(cell: Cell, patterns: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether a cell has, on each axis that is named, a value that a pattern matches."""
    return all(_any_matches(axis, some, cell) for axis, some in patterns.items() if some)
