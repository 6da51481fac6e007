"""The cells of the matrix: their selection by patterns, and the reasons to leave them out.

The reasons are in three layers: the world, the base image, the maintainer.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from builder import facts
from builder.facts import CudaRelease
from builder.model import (
    GENERIC,
    NONE,
    SELECTABLE,
    TOOLKITS,
    BlockUse,
    Cell,
    Exclude,
    LeftOut,
    PlannedCuda,
    PlannedMpi,
    Project,
    Reason,
    Recipe,
    Selection,
)
from builder.model.architectures import CPU_TARGETS as TARGETS_BY_ARCH
from builder.model.errors import EmptySelection, suggestion
from builder.model.exact_json import part
from builder.model.planned import AllLeftOut
from builder.model.versions import matches, split_mpi
from builder.plan import nvidia, toolkits
from builder.plan.routes import BASE, MAINTAINER, WORLD, Reasons, choose_cuda, choose_mpi, source_of

_WILD = re.compile(r"[*?\[]")


def selected_cells(
    project: Project, selection: Selection, *, within_limits: bool = False
) -> Iterator[Cell]:
    """Return the selected cells, parents before their children.

    Without a selector, the matrix's default selection is used. Each combination of axis values
    and recipes is there once for each flavour and CPU target of the selection. With
    `within_limits`, only cells that their recipes' `axes` allow are returned.
    """
    chosen = bool(selection.everything or selection.patterns or selection.images)
    patterns = selection.patterns if chosen else project.matrix.default
    globs = selection.images or ("*",)
    cells = all_cells(project, selection, patterns, globs, within_limits=within_limits)
    if not selection.images:
        return cells
    return (
        cell for cell in cells if any(fnmatch.fnmatchcase(cell.identifier, glob) for glob in globs)
    )


def all_cells(
    project: Project,
    selection: Selection,
    patterns: Mapping[str, tuple[str, ...]],
    globs: Sequence[str] = ("*",),
    *,
    within_limits: bool = False,
) -> Iterator[Cell]:
    """Yield each combination of axis values and recipes that match patterns.

    Flavours and CPU targets come from the selection. Most cells whose identifiers cannot match
    one of `globs` are skipped early, since a matrix may have 100,000 cells.
    """

    def values(axis: str, chain: Sequence[Recipe] = ()) -> list[str]:
        wanted = [patterns.get(axis), *(recipe.limits.get(axis) for recipe in chain)]
        return [
            value
            for value in axis_values(project, axis)
            if all(any_matches(axis, only, value) for only in wanted if only)
        ]

    chains = {name: project.chain(name) for name in values("recipe")}
    for name in sorted(chains, key=lambda name: (len(chains[name]), name)):
        version = project.recipes[name].version
        chain = chains[name] if within_limits else ()
        rest = [values(axis, chain) for axis in ("cuda", "mpi")]
        variants = (selection.flavours, selection.cpu_targets, values("arch", chain))
        for base in values("base", chain):
            if not _may_match(f"{name}-{version}-{base}", globs):
                continue
            for cuda, mpi, flavour, cpu, arch in itertools.product(*rest, *variants):
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


def nothing_selected(
    project: Project, selection: Selection, left_out: Sequence[LeftOut]
) -> EmptySelection:
    """Return the error for a selection without a buildable cell: the reasons, or all values."""
    hint = "" if selection.everything else "'build-images plan --all' lists all images"
    if left_out:
        return AllLeftOut(left_out, hint=hint)
    values = [f"  {axis}: {', '.join(axis_values(project, axis))}" for axis in SELECTABLE]
    return EmptySelection("\n".join(["nothing is selected.", *values]), hint=hint)


def _off_axis(project: Project, axis: str, pattern: str) -> str:
    base = project.bases.get(pattern) if axis == "base" else None
    if base is None:
        return ""
    file = project.matrix.files.get(axis, "")
    return f"\n  {base.where.file} declares it, but the axis base of {file} lacks it"


def _unmatched(axis: str, pattern: str, values: Sequence[str]) -> str:
    guess = suggestion(pattern, values, "; did you mean {}?")
    shown = [*values[:20], "..."] if len(values) > 20 else values  # noqa: PLR2004 - a screenful
    return f"--{axis} {pattern}: matches nothing{guess}\n  {axis}: {', '.join(shown)}"


class _Rule:
    """Finds reasons to leave cells out, once for the values of the axes that it depends on."""

    def __init__(self, axes: Iterable[str], find: Callable[[Cell], Reasons]) -> None:
        self.values = operator.attrgetter(*dict.fromkeys(axes))
        self.known: dict[object, Reasons] = {}
        self.find = find


@dataclass(frozen=True, kw_only=True, slots=True)
class CellToolkits:
    """The CUDA toolkit and the MPI of a cell."""

    cuda: PlannedCuda | None
    mpi: PlannedMpi | None


class _Choices:
    """The toolkits that are chosen for cells of one project, each once."""

    def __init__(self, project: Project) -> None:
        self.cuda = functools.cache(functools.partial(choose_cuda, project))
        self.mpi = functools.cache(functools.partial(choose_mpi, project))


class _Toolkits:
    """The toolkits that a recipe and its ancestors install, and what keeps cells from having them.

    `cuda_rule` and `mpi_rule` say where none can be had; `conditions` are the axes that decide
    which blocks a cell has.
    """

    def __init__(self, project: Project, recipe: str, choices: _Choices) -> None:
        self._project = project
        self._choices = choices
        blocks = (use for ancestor in project.chain(recipe) for use in ancestor.development)
        self._uses = [use for use in blocks if use.name in TOOLKITS]
        self.conditions = [axis for use in self._uses for axis in use.when]
        self.cuda_rule = _Rule(("base", "cuda", "arch", *self.conditions), self._without_cuda)
        self.mpi_rule = _Rule(("base", "mpi", *self.conditions), self._without_mpi)

    def of_cell(self, cell: Cell) -> CellToolkits:
        uses = self.uses(cell)
        return CellToolkits(cuda=self._cuda(cell, uses)[0], mpi=self._mpi(cell, uses)[0])

    def uses(self, cell: Cell) -> list[BlockUse]:
        """Return the blocks of a cell that install a toolkit."""
        return [use for use in self._uses if fits(cell, use.when)]

    def _cuda(self, cell: Cell, uses: list[BlockUse]) -> tuple[PlannedCuda | None, Reasons]:
        arguments = _arguments(uses, toolkits.CUDA)
        sdk, own = str(part(arguments, "sdk", "version") or ""), part(arguments, "capabilities")
        brought = tuple(own or ()) if arguments.get("toolkit") is False else None
        return self._choices.cuda(cell.base, cell.cuda, cell.arch, sdk, brought)

    def _mpi(self, cell: Cell, uses: list[BlockUse]) -> tuple[PlannedMpi | None, Reasons]:
        release = str(part(_arguments(uses, toolkits.MPI), "source", "version") or "")
        return self._choices.mpi(cell.base, cell.mpi, self._routes(uses), release)

    def _routes(self, uses: list[BlockUse]) -> tuple[str, ...]:
        """Return the routes to an MPI that a recipe allows, in the site's order."""
        if not any(use.name == toolkits.MPI for use in uses):
            return ("package",)
        routes = self._project.site.mpi_routes
        allowed = part(_arguments(uses, toolkits.MPI), "routes") or routes
        return tuple(route for route in routes if route in allowed)

    def _without_mpi(self, cell: Cell) -> Reasons:
        return self._mpi(cell, self.uses(cell))[1]

    def _without_cuda(self, cell: Cell) -> Reasons:
        uses = self.uses(cell)
        cuda, reasons = self._cuda(cell, uses)
        release = self._project.facts.cuda.get(cell.cuda)
        compiles = cuda if cuda and cuda.route != nvidia.RECIPE_ROUTE else release
        has = compiles.capabilities if compiles else ()
        needed = _reasons(WORLD, self._capability_texts(release, uses, has)) if release else ()
        extras = _reasons(BASE, _extra_texts(cell, uses, cuda)) if cuda and has else ()
        at = sum(reason.layer == WORLD for reason in reasons)
        return (*reasons[:at], *needed, *reasons[at:], *extras)

    def _capability_texts(
        self, release: CudaRelease, uses: list[BlockUse], has: Sequence[str]
    ) -> Iterator[str]:
        for use in uses if has else ():
            for capability in map(str, part(use.arguments, "capabilities") or ()):
                if capability not in has:
                    can = self._project.facts.cuda_for(capability=capability)
                    others = f"; CUDA {can[0]} to {can[-1]} can" if can else ""
                    shown = ", ".join(f"sm_{number}" for number in has)
                    yield (
                        f"CUDA {release.version} cannot compile for sm_{capability}, which "
                        f"{use.where} needs, only for {shown}{others} "
                        f"({source_of(release, 'CUDAArchitectures')})"
                    )


def _extra_texts(cell: Cell, uses: list[BlockUse], cuda: PlannedCuda) -> Iterator[str]:
    for use in uses:
        for name in toolkits.missing_extras(use, cuda):
            text = f"CUDA {cell.cuda} by the route {cuda.route} on {cell.base} for {cell.arch}"
            yield f"{text} has no {name}, but {use.where} needs it"


class Constraints:
    """Examines cells of one project: each rule once for the values that it depends on."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._choices = _Choices(project)
        self._toolkits = functools.cache(self._toolkits_of)
        self._rules = functools.cache(lambda recipe: tuple(self._rules_of(recipe)))
        self._world = _Rule(
            ("mpi", "arch", "cpu"), lambda cell: _reasons(WORLD, _world_texts(cell))
        )
        self._available = _Rule(("base", "arch"), self._unavailable)
        excludes = project.matrix.excludes
        self._excludes = [(each.when, _Rule(each.when, _excluded(each))) for each in excludes]

    def reasons(self, cell: Cell) -> Reasons:
        """Return all reasons to leave a cell out: of the world, the base, the maintainer."""
        all_reasons: Reasons = ()
        for rule in self._rules(cell.recipe):  # the innermost loop of a plan of all cells
            values = rule.values(cell)
            reasons = rule.known.get(values)
            if reasons is None:
                reasons = rule.known[values] = rule.find(cell)
            all_reasons += reasons
        return all_reasons

    def toolkits(self, cell: Cell) -> CellToolkits:
        return self._toolkits(cell.recipe).of_cell(cell)

    def _toolkits_of(self, recipe: str) -> _Toolkits:
        """Return the toolkits of a recipe: its parent's, if it installs none itself."""
        own = self._project.recipes[recipe]
        if own.parent and not any(use.name in TOOLKITS for use in own.development):
            return self._toolkits(own.parent)
        return _Toolkits(self._project, recipe, self._choices)

    def _rules_of(self, recipe: str) -> Iterator[_Rule]:
        """Yield the rules for the cells of a recipe, in the order of their reasons."""
        own = self._toolkits(recipe)
        yield from (self._world, own.cuda_rule, own.mpi_rule, self._available)
        yield _Rule(
            ("cuda", "mpi", *own.conditions),
            lambda cell: _reasons(MAINTAINER, _toolkit_texts(cell, own.uses(cell))),
        )
        for ancestor in self._project.chain(recipe):
            for axis, patterns in ancestor.limits.items():
                yield _Rule((axis,), _limit(ancestor, axis, patterns))
        for when, rule in self._excludes:
            if "recipe" not in when or any_matches("recipe", when["recipe"], recipe):
                yield rule

    def _unavailable(self, cell: Cell) -> Reasons:
        base = self._project.bases[cell.base]
        if cell.arch in base.architectures:
            return ()
        archs = ", ".join(base.architectures)
        text = f"{base.name} is available only for {archs} ({base.where.file})"
        return (Reason(layer=BASE, text=text),)


def _arguments(uses: list[BlockUse], name: str) -> Mapping[str, object]:
    """Return the arguments of the first use of a toolkit."""
    return next((use.arguments for use in uses if use.name == name), {})


def _reasons(layer: str, texts: Iterable[str]) -> Reasons:
    return tuple(Reason(layer=layer, text=text) for text in texts)


def _world_texts(cell: Cell) -> Iterator[str]:
    targets = (GENERIC, *TARGETS_BY_ARCH.get(cell.arch, ()))
    if cell.cpu not in targets:
        yield f"unknown CPU target for {cell.arch}: {cell.cpu}; valid: {', '.join(targets)}"
    family = facts.MPI_FAMILIES.get(split_mpi(cell.mpi)[0])
    if family and family.architectures and cell.arch not in family.architectures:
        yield f"{family.title} exists only for {', '.join(family.architectures)}, not {cell.arch}"


def _toolkit_texts(cell: Cell, uses: list[BlockUse]) -> Iterator[str]:
    """Check that the recipe uses the cell's CUDA, and that the cell has the recipe's toolkits."""
    named = {use.name: use for use in uses}
    if cell.cuda != NONE and toolkits.CUDA not in named:
        yield f"recipe {cell.recipe} does not install CUDA: use cuda none"
    brought = [use for use in uses if use.name == toolkits.CUDA]
    for use in brought[1:]:
        if "sdk" in use.arguments:
            yield f"{brought[0].where} installs CUDA before the HPC SDK of {use.where}"
        if brought[0].arguments.get("toolkit") is False and "toolkit" not in use.arguments:
            yield f"{use.where} needs a toolkit, but {brought[0].where} says toolkit: false"
    for name, use in named.items():
        if cell.axis(name) == NONE:
            yield f"recipe {cell.recipe} needs {name}, but the cell has none ({use.where})"


def _limit(recipe: Recipe, axis: str, patterns: tuple[str, ...]) -> Callable[[Cell], Reasons]:
    text = f"recipe {recipe.name} allows only {axis} {', '.join(patterns)}"
    reason = Reason(layer=MAINTAINER, text=f"{text} ({recipe.where.file}: axes.{axis})")
    return lambda cell: () if any_matches(axis, patterns, cell.axis(axis)) else (reason,)


def _excluded(exclude: Exclude) -> Callable[[Cell], Reasons]:
    reason = Reason(layer=MAINTAINER, text=f"{exclude.reason} ({exclude.where})")
    return lambda cell: (reason,) if fits(cell, exclude.when) else ()
