"""Recipes and checks as the stages and checks of one cell's image."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from builder.model import (
    NONE,
    BlockUse,
    Cell,
    Check,
    Project,
    Recipe,
    StageCheck,
    StageRecipe,
    Where,
    merged_environment,
    templates,
)
from builder.model.errors import BadInput, Fault
from builder.model.templates import SourceNames
from builder.plan import toolkits
from builder.plan.cells import fits
from builder.plan.constraints import Verdict

CHECKS_FOLDER = Path("tests/images")
_NO_LAUNCHER = "echo 'the MPI is the host'\\''s: none is in the image'; exit 77"


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """Stages and checks of an image, and the faults of templates that cannot be rendered."""

    stages: tuple[StageRecipe, ...]
    checks: tuple[StageCheck, ...]
    faults: tuple[Fault, ...]


class Stages:
    """Makes stages and checks of one project; what cells have in common is made once."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._memo = Memo()
        self._rendering = Rendering()

    def of(self, cell: Cell, verdict: Verdict) -> Contents:
        """The stages of the cell's recipe and its ancestors, and the checks of all of them."""
        base = self._project.bases[cell.base]
        names = templates.names(cell, base, verdict.mpi, verdict.cuda)
        faults: list[Fault] = []
        stages = tuple(
            self._stage(recipe, self._fitting(checks, cell), cell, verdict, names, faults)
            for recipe, checks in self._chain_with_checks(cell.recipe)
        )
        checks = tuple(
            self._check(self._project.checks[name], verdict, names, faults)
            for stage in stages
            for name in stage.checks
        )
        return Contents(stages=stages, checks=checks, faults=tuple(faults))

    def _chain_with_checks(self, name: str) -> list[tuple[Recipe, tuple[str, ...]]]:
        """The ancestors and the recipe, each with the checks that it adds."""
        chain: list[tuple[Recipe, tuple[str, ...]]] = []
        seen: set[str] = set()
        for recipe in self._project.chain(name):
            chain.append((recipe, tuple(c for c in dict.fromkeys(recipe.checks) if c not in seen)))
            seen.update(recipe.checks)
        return chain

    def _fitting(self, checks: tuple[str, ...], cell: Cell) -> tuple[str, ...]:
        """The checks that say something of a cell: without CUDA, an image is for no GPU."""
        if cell.cuda != NONE:
            return checks
        declared = self._project.checks
        return tuple(name for name in checks if not {"cuda", "gpu"} & {*declared[name].needs})

    def _source_names(self, recipe: str) -> dict[str, SourceNames]:
        sources = self._project.recipes[recipe].sources
        return templates.source_names(recipe, sources, self._project.lock)

    def _stage(
        self,
        recipe: Recipe,
        checks: tuple[str, ...],
        cell: Cell,
        verdict: Verdict,
        names: Mapping[str, object],
        faults: list[Fault],
    ) -> StageRecipe:
        context = {**names, "sources": self._source_names(recipe.name)}
        expansions = [
            self._expanded(use, cell, verdict)
            for use in self._blocks(recipe.development, cell, context, faults)
        ]
        runtime = self._blocks(recipe.runtime, cell, context, faults)
        variables: dict[str, str] = {}
        for expansion in expansions:
            variables = merged_environment(variables, expansion.environment)
        own = self._rendering.of(recipe.environment, context, recipe.where, faults)
        variables = merged_environment(variables, own)
        return StageRecipe(
            name=recipe.name,
            version=recipe.version,
            about=recipe.about,
            development=tuple(use for expansion in expansions for use in expansion.development),
            runtime=(*(use for expansion in expansions for use in expansion.runtime), *runtime),
            environment={name: text for name, text in variables.items() if text},
            labels=self._rendering.of(recipe.labels, context, recipe.where, faults),
            checks=checks,
            sources=recipe.sources,
            command=recipe.command,
            entrypoint=recipe.entrypoint,
        )

    def _blocks(
        self,
        uses: tuple[BlockUse, ...],
        cell: Cell,
        context: Mapping[str, object],
        faults: list[Fault],
    ) -> Iterator[BlockUse]:
        for use in uses:
            if not use.when or fits(cell, use.when):
                arguments = self._rendering.of(use.arguments, context, use.where, faults)
                yield self._memo.of(_with_arguments, use, arguments)

    def _expanded(self, use: BlockUse, cell: Cell, verdict: Verdict) -> toolkits.Expansion:
        """Return the expansion of a block: itself, or the blocks of a toolkit's route."""
        if use.name == toolkits.MPI:
            assert verdict.mpi is not None
            return self._memo.of(toolkits.expand_mpi, use, verdict.mpi)
        if use.name == toolkits.CUDA:
            assert verdict.cuda is not None
            base = self._project.bases[cell.base]
            return self._memo.of(toolkits.expand_cuda, use, verdict.cuda, base, cell.arch)
        return self._memo.of(_itself, use)

    def _check(
        self, check: Check, verdict: Verdict, names: Mapping[str, object], faults: list[Fault]
    ) -> StageCheck:
        run = self._rendering.of(check.run, names, check.where, faults)
        build = self._rendering.of(check.build, names, check.where, faults)
        if "mpi" in check.needs and verdict.mpi is not None and verdict.mpi.route == "host":
            run = _NO_LAUNCHER
        return self._memo.of(_stage_check, check, run, build, self._project.root)


def _with_arguments(use: BlockUse, arguments: Mapping[str, object]) -> BlockUse:
    return BlockUse(
        name=use.name, arguments=arguments, where=use.where, lines=use.lines, files=use.files
    )


def _itself(use: BlockUse) -> toolkits.Expansion:
    return toolkits.Expansion(development=(use,))


def _stage_check(check: Check, run: object, build: Iterable[str], root: Path) -> StageCheck:
    return StageCheck(
        name=check.name,
        about=check.about,
        sources={name: read_text(root / CHECKS_FOLDER / name) for name in check.sources},
        build=tuple(build),
        run=str(run),
        needs=check.needs,
        timeout_s=check.timeout_s,
    )


def read_text(path: Path) -> str:
    """The text of a file of the checks; raises `BadInput` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: this file of the checks cannot be read ({error})") from error


_WORD = re.compile(r"[A-Za-z_]\w*")
T = TypeVar("T")


class Memo:
    """Results by the identity of what they were made from, which is kept alive for it."""

    def __init__(self) -> None:
        self._results: dict[Hashable, tuple[object, object]] = {}

    def of(self, make: Callable[..., T], *sources: object) -> T:
        """`make(*sources)`, made once for the same objects; `make` is a function of a module."""
        key = (make, *map(id, sources))
        entry = self._results.get(key)
        if entry is None:
            entry = self._results[key] = (make(*sources), sources)
        return cast("T", entry[0])


class Rendering:
    """Renders values of a project's files, which live as long as this does."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[str, ...]] = {}
        self._done: dict[Hashable, object] = {}

    def of(
        self, value: object, context: Mapping[str, object], where: Where, faults: list[Fault]
    ) -> Any:
        """A value for one cell; itself, and a fault, when a template in it cannot be rendered."""
        names = self._names.get(id(value))
        if names is None:
            # `sources` are the recipe's own, and no other recipe's values are this value.
            words = _words(value)
            names = tuple(name for name in context if name in words and name != "sources")
            self._names[id(value)] = names
        key = (id(value), *[context[name] for name in names])
        try:
            if key not in self._done:
                self._done[key] = templates.render(value, context)
            return self._done[key]
        except templates.TemplateError as error:
            faults.append(_fault(error, context, where))
            return value


def _words(value: object) -> frozenset[str]:
    """Every word in the templates of a value: a name that one of them uses is among them."""
    if isinstance(value, str):
        return frozenset(_WORD.findall(value)) if "{" in value else frozenset()
    if isinstance(value, Mapping):
        return frozenset().union(*map(_words, value.values()))
    if isinstance(value, (list, tuple)):
        return frozenset().union(*map(_words, value))
    return frozenset()


def _fault(error: Exception, context: Mapping[str, object], where: Where) -> Fault:
    base = getattr(context["base"], "name", "")
    return Fault(
        file=where.file,
        line=where.line,
        key=where.key,
        problem=f"the template fails for {base} {context['arch']}: {error}",
        valid=f"names: {templates.VALID_NAMES}",
    )
