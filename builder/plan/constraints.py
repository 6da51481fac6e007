"""Reasons against a cell, in three layers: the world, the base image, the maintainer."""

from __future__ import annotations

import functools
from collections.abc import Iterator
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
from builder.plan.routes import (
    BASE,
    MAINTAINER,
    WORLD,
    Choice,
    choose_cuda,
    choose_mpi,
    source_of,
)

_NO_CUDA: Choice[PlannedCuda] = Choice()
_NO_MPI: Choice[PlannedMpi] = Choice()


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A cell's toolkits, and every reason against it."""

    cuda: PlannedCuda | None
    mpi: PlannedMpi | None
    reasons: tuple[Reason, ...]


class Constraints:
    """Examines cells of one project; what several cells have in common is found out once."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._cuda = functools.cache(self._choose_cuda)
        self._mpi = functools.cache(self._choose_mpi)
        self._uses = functools.cache(self._toolkit_uses)
        self._chain = functools.cache(project.chain)

    def examine(self, cell: Cell) -> Verdict:
        """Return the toolkits of a cell, and the reasons why it cannot or shall not be built."""
        uses = [use for use in self._uses(cell.recipe) if fits(cell, use.when)]
        cuda = self._cuda(cell.base, cell.cuda, cell.arch, _sdk(uses))
        mpi = self._mpi(cell.base, cell.mpi, self._routes(uses), _release(uses))
        reasons = (
            *_target_reasons(cell),
            *_family_reasons(cell),
            *cuda.reasons,
            *mpi.reasons,
            *self._base_reasons(cell),
            *self._wishes(cell, uses, cuda.chosen),
            *self._maintainer_reasons(cell, uses),
        )
        in_order = sorted(reasons, key=lambda reason: (WORLD, BASE, MAINTAINER).index(reason.layer))
        return Verdict(cuda=cuda.chosen, mpi=mpi.chosen, reasons=tuple(in_order))

    def _choose_cuda(self, base: str, version: str, arch: str, sdk: str) -> Choice[PlannedCuda]:
        if version == NONE:
            return _NO_CUDA
        return choose_cuda(self._project, self._project.bases[base], version, arch, sdk)

    def _choose_mpi(
        self, base: str, mpi: str, routes: tuple[str, ...], release: str
    ) -> Choice[PlannedMpi]:
        if mpi == NONE:
            return _NO_MPI
        return choose_mpi(self._project, self._project.bases[base], mpi, routes, release)

    def _toolkit_uses(self, recipe: str) -> tuple[BlockUse, ...]:
        return tuple(
            use
            for ancestor in self._chain(recipe)
            for use in ancestor.development
            if use.name in TOOLKITS
        )

    def _routes(self, uses: list[BlockUse]) -> tuple[str, ...]:
        """The routes to an MPI that a recipe takes, in the site's order."""
        for use in uses:
            if use.name == toolkits.MPI:
                routes = self._project.site.mpi_routes
                allowed = part(use.arguments, "routes") or routes
                return tuple(route for route in routes if route in allowed)
        return ("package",)

    def _base_reasons(self, cell: Cell) -> Iterator[Reason]:
        base = self._project.bases[cell.base]
        if cell.arch not in base.architectures:
            text = f"{base.name} exists for {', '.join(base.architectures)} ({base.where.file})"
            yield Reason(layer=BASE, text=text)

    def _wishes(
        self, cell: Cell, uses: list[BlockUse], cuda: PlannedCuda | None
    ) -> Iterator[Reason]:
        """Yield a reason for each feature that a recipe wants and its toolkit lacks."""
        release = self._project.facts.cuda.get(cell.cuda)
        has = cuda.capabilities if cuda else release.capabilities if release else ()
        for use in uses if has else ():
            if use.name != toolkits.CUDA:
                continue
            for name in toolkits.missing_extras(use, cuda) if cuda else ():
                yield Reason(layer=BASE, text=_no_extra(use, name, cell, cuda))
            for capability in part(use.arguments, "capabilities") or ():
                if str(capability) not in has:
                    text = self._no_capability(use, str(capability), cell.cuda, has)
                    yield Reason(layer=WORLD, text=text)

    def _no_capability(
        self, use: BlockUse, capability: str, version: str, has: tuple[str, ...]
    ) -> str:
        known = self._project.facts
        can = known.cuda_for(capability=capability)
        others = f"; CUDA {can[0]} to {can[-1]} do" if can else ""
        shown = ", ".join(f"sm_{number}" for number in has)
        source = source_of(known.cuda[version], "CUDAArchitectures")
        return (
            f"CUDA {version} does not compile for sm_{capability}, which {_place(use)} wants: "
            f"it does for {shown}{others} ({source})"
        )

    def _maintainer_reasons(self, cell: Cell, uses: list[BlockUse]) -> Iterator[Reason]:
        for text in (
            *_toolkit_reasons(cell, uses),
            *(text for recipe in self._chain(cell.recipe) for text in _limits(recipe, cell)),
            *self._excludes(cell),
        ):
            yield Reason(layer=MAINTAINER, text=text)

    def _excludes(self, cell: Cell) -> Iterator[str]:
        for exclude in self._project.matrix.excludes:
            if all(any_matches(axis, values, cell) for axis, values in exclude.when.items()):
                yield f"{exclude.reason} ({exclude.where.file}:{exclude.where.line})"


def _release(uses: list[BlockUse]) -> str:
    """The release that a recipe builds its MPI from; empty if it leaves that to the cell."""
    for use in uses:
        if use.name == toolkits.MPI:
            return str(part(use.arguments, "source", "version") or "")
    return ""


def _sdk(uses: list[BlockUse]) -> str:
    """The release of the HPC SDK that a recipe's first toolkit comes from; empty if from none."""
    for use in uses:
        if use.name == toolkits.CUDA:
            return str(part(use.arguments, "sdk", "version") or "")
    return ""


def _target_reasons(cell: Cell) -> Iterator[Reason]:
    targets = CPU_TARGETS.get(cell.arch, ())
    if cell.cpu not in (GENERIC, *targets):
        text = f"{cell.cpu} is no processor of {cell.arch}: {', '.join((GENERIC, *targets))}"
        yield Reason(layer=WORLD, text=text)


def _family_reasons(cell: Cell) -> Iterator[Reason]:
    family = facts.MPI_FAMILIES.get(split_mpi(cell.mpi)[0])
    if family and family.architectures and cell.arch not in family.architectures:
        text = f"{family.title} is for {', '.join(family.architectures)} only, not {cell.arch}"
        yield Reason(layer=WORLD, text=text)


def _toolkit_reasons(cell: Cell, uses: list[BlockUse]) -> Iterator[str]:
    """A cell with a CUDA must have it in its image; a recipe that needs one must get it."""
    named = {use.name: use for use in uses}
    if cell.cuda != NONE and toolkits.CUDA not in named:
        yield f"recipe {cell.recipe} puts no CUDA into its images: it takes cuda none"
    brought = [use for use in uses if use.name == toolkits.CUDA]
    for use in brought[1:]:
        if "sdk" in use.arguments:
            yield f"CUDA is there before the HPC SDK of {_place(use)}, by {_place(brought[0])}"
    for name, use in named.items():
        if cell.axis(name) == NONE:
            yield f"recipe {cell.recipe} needs {name}, and the cell has none ({_place(use)})"


def _limits(recipe: Recipe, cell: Cell) -> Iterator[str]:
    for axis, patterns in recipe.limits.items():
        if not any_matches(axis, patterns, cell):
            taken = f"recipe {recipe.name} takes {axis} {', '.join(patterns)}"
            yield f"{taken} ({recipe.where.file}: axes.{axis})"


def _no_extra(use: BlockUse, name: str, cell: Cell, cuda: PlannedCuda | None) -> str:
    route = f" by the route {cuda.route}" if cuda else ""
    text = f"CUDA {cell.cuda}{route} on {cell.base} for {cell.arch} has no {name}"
    return f"{text}, and {_place(use)} wants it"


def _place(use: BlockUse) -> str:
    return f"{use.where.file}:{use.where.line}"
