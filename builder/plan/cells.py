"""The cells of the matrix: their selection by patterns, and the reasons to leave them out.

The reasons are in three layers: the world, the base image, the maintainer.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from builder import facts
from builder.model import (
    GENERIC,
    NONE,
    SELECTABLE,
    TOOLKITS,
    BlockUse,
    Cell,
    LeftOut,
    PlannedCuda,
    PlannedMpi,
    Project,
    Reason,
    Recipe,
    Selection,
)
from builder.model.architectures import CPU_TARGETS as TARGETS_BY_ARCH
from builder.model.errors import EmptySelection
from builder.model.exact_json import part
from builder.model.planned import MANY, by_reason
from builder.model.versions import matches, split_mpi
from builder.plan import toolkits
from builder.plan.routes import BASE, MAINTAINER, WORLD, choose_cuda, choose_mpi, source_of

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
        _unmatched(axis, pattern, values) + _off_axis(project, axis, pattern)
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


def _off_axis(project: Project, axis: str, pattern: str) -> str:
    base = project.bases.get(pattern) if axis == "base" else None
    if base is None:
        return ""
    file = project.matrix.files.get(axis, "")
    return f"\n  {base.where.file} declares it, but the axis base of {file} lacks it"


def _unmatched(axis: str, pattern: str, values: Sequence[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - needed only for an error

    close = get_close_matches(pattern, values, n=1)
    guess = f"; did you mean {close[0]}?" if close else ""
    shown = [*values[:20], "..."] if len(values) > 20 else values  # noqa: PLR2004 - a screenful
    return f"--{axis} {pattern}: matches nothing{guess}\n  {axis}: {', '.join(shown)}"


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
    targets = (GENERIC, *TARGETS_BY_ARCH.get(cell.arch, ()))
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
