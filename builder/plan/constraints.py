"""Reasons to leave out a cell, in three layers: the world, the base image, the maintainer."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from builder import facts
from builder.model import (
    GENERIC,
    NONE,
    TOOLKITS,
    BlockUse,
    Cell,
    PlannedCuda,
    PlannedMpi,
    Project,
    Reason,
    Recipe,
)
from builder.model.architectures import CPU_TARGETS
from builder.model.exact_json import part
from builder.model.versions import split_mpi
from builder.plan import toolkits
from builder.plan.cells import any_matches, fits
from builder.plan.routes import BASE, MAINTAINER, WORLD, choose_cuda, choose_mpi, source_of


@dataclass(frozen=True, kw_only=True, slots=True)
class CellVerdict:
    """A cell's toolkits, and all reasons to leave it out."""

    cuda: PlannedCuda | None
    mpi: PlannedMpi | None
    reasons: tuple[Reason, ...]


class Constraints:
    """Examines cells of one project; toolkits shared by several cells are chosen once."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._cuda = functools.cache(functools.partial(choose_cuda, project))
        self._mpi = functools.cache(functools.partial(choose_mpi, project))

    def examine(self, cell: Cell) -> CellVerdict:
        """Return the toolkits of a cell, and all reasons to leave it out."""
        chain = self._project.chain(cell.recipe)
        blocks = (use for recipe in chain for use in recipe.development)
        uses = [use for use in blocks if use.name in TOOLKITS and fits(cell, use.when)]
        sdk = str(part(_arguments(uses, toolkits.CUDA), "sdk", "version") or "")
        release = str(part(_arguments(uses, toolkits.MPI), "source", "version") or "")
        cuda, cuda_reasons = self._cuda(cell.base, cell.cuda, cell.arch, sdk)
        mpi, mpi_reasons = self._mpi(cell.base, cell.mpi, self._routes(uses), release)
        excludes = (each for each in self._project.matrix.excludes if fits(cell, each.when))
        reasons = (
            *_reasons(WORLD, _world_reasons(cell)),
            *cuda_reasons,
            *mpi_reasons,
            *_reasons(BASE, self._base_reasons(cell, uses, cuda)),
            *_reasons(WORLD, self._capability_reasons(cell, uses, cuda)),
            *_reasons(MAINTAINER, _toolkit_reasons(cell, uses)),
            *_reasons(MAINTAINER, (text for recipe in chain for text in _limits(recipe, cell))),
            *_reasons(MAINTAINER, (f"{exclude.reason} ({exclude.where})" for exclude in excludes)),
        )
        layers = (WORLD, BASE, MAINTAINER)
        in_order = sorted(reasons, key=lambda reason: layers.index(reason.layer))
        return CellVerdict(cuda=cuda, mpi=mpi, reasons=tuple(in_order))

    def _routes(self, uses: list[BlockUse]) -> tuple[str, ...]:
        """Return the routes to an MPI that a recipe allows, in the site's order."""
        if not any(use.name == toolkits.MPI for use in uses):
            return ("package",)
        routes = self._project.site.mpi_routes
        allowed = part(_arguments(uses, toolkits.MPI), "routes") or routes
        return tuple(route for route in routes if route in allowed)

    def _base_reasons(
        self, cell: Cell, uses: list[BlockUse], cuda: PlannedCuda | None
    ) -> Iterator[str]:
        base = self._project.bases[cell.base]
        if cell.arch not in base.architectures:
            archs = ", ".join(base.architectures)
            yield f"{base.name} is available only for {archs} ({base.where.file})"
        if cuda is None or not cuda.capabilities:
            return
        for use in uses:
            for name in toolkits.missing_extras(use, cuda):
                text = f"CUDA {cell.cuda} by the route {cuda.route} on {cell.base} for {cell.arch}"
                yield f"{text} has no {name}, but {use.where} needs it"

    def _capability_reasons(
        self, cell: Cell, uses: list[BlockUse], cuda: PlannedCuda | None
    ) -> Iterator[str]:
        known = self._project.facts
        release = known.cuda.get(cell.cuda)
        if release is None:
            return
        has = cuda.capabilities if cuda else release.capabilities
        for use in uses if has else ():
            for capability in map(str, part(use.arguments, "capabilities") or ()):
                if capability not in has:
                    can = known.cuda_for(capability=capability)
                    others = f"; CUDA {can[0]} to {can[-1]} can" if can else ""
                    shown = ", ".join(f"sm_{number}" for number in has)
                    yield (
                        f"CUDA {cell.cuda} cannot compile for sm_{capability}, which {use.where} "
                        f"needs, only for {shown}{others} "
                        f"({source_of(release, 'CUDAArchitectures')})"
                    )


def _arguments(uses: list[BlockUse], name: str) -> Mapping[str, object]:
    """Return the arguments of the first use of a toolkit."""
    return next((use.arguments for use in uses if use.name == name), {})


def _reasons(layer: str, texts: Iterable[str]) -> Iterator[Reason]:
    return (Reason(layer=layer, text=text) for text in texts)


def _world_reasons(cell: Cell) -> Iterator[str]:
    targets = (GENERIC, *CPU_TARGETS.get(cell.arch, ()))
    if cell.cpu not in targets:
        yield f"unknown CPU target for {cell.arch}: {cell.cpu}; valid: {', '.join(targets)}"
    family = facts.MPI_FAMILIES.get(split_mpi(cell.mpi)[0])
    if family and family.architectures and cell.arch not in family.architectures:
        yield f"{family.title} exists only for {', '.join(family.architectures)}, not {cell.arch}"


def _toolkit_reasons(cell: Cell, uses: list[BlockUse]) -> Iterator[str]:
    """Check that the recipe uses the cell's CUDA, and that the cell has the recipe's toolkits."""
    named = {use.name: use for use in uses}
    if cell.cuda != NONE and toolkits.CUDA not in named:
        yield f"recipe {cell.recipe} does not install CUDA: use cuda none"
    brought = [use for use in uses if use.name == toolkits.CUDA]
    for use in brought[1:]:
        if "sdk" in use.arguments:
            yield f"{brought[0].where} installs CUDA before the HPC SDK of {use.where}"
    for name, use in named.items():
        if cell.axis(name) == NONE:
            yield f"recipe {cell.recipe} needs {name}, but the cell has none ({use.where})"


def _limits(recipe: Recipe, cell: Cell) -> Iterator[str]:
    for axis, patterns in recipe.limits.items():
        if not any_matches(axis, patterns, cell.axis(axis)):
            taken = f"recipe {recipe.name} allows only {axis} {', '.join(patterns)}"
            yield f"{taken} ({recipe.where.file}: axes.{axis})"
