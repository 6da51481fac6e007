"""Recipes and checks as the stages and checks of one cell's image."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.model import (
    NONE,
    BlockUse,
    Cell,
    Project,
    Recipe,
    StageCheck,
    StageRecipe,
    Where,
    merged_environment,
    templates,
)
from builder.model.errors import BadInput, Fault
from builder.plan import toolkits
from builder.plan.cells import fits
from builder.plan.constraints import CellVerdict

CHECKS_FOLDER = Path("tests/images")
_NO_LAUNCHER = "echo 'the MPI is the host'\\''s: none is in the image'; exit 77"


class StagePlanner:
    """Plans stages and checks of the images of one project; `faults` are those of templates."""

    def __init__(self, project: Project) -> None:
        self._project = project
        folder = project.root / CHECKS_FOLDER
        names = {name for check in project.checks.values() for name in check.sources}
        self._texts = {name: read_text(folder / name) for name in names}
        self.faults: list[Fault] = []

    def of(
        self, cell: Cell, verdict: CellVerdict
    ) -> tuple[tuple[StageRecipe, ...], tuple[StageCheck, ...]]:
        """Return the stages of the cell's recipe and its ancestors, and the checks of them all."""
        base = self._project.bases[cell.base]
        names = templates.names(cell, base, verdict.mpi, verdict.cuda)
        stages = tuple(
            self._stage(recipe, checks, cell, verdict, names)
            for recipe, checks in self._chain_with_checks(cell)
        )
        checks = (self._check(name, verdict, names) for stage in stages for name in stage.checks)
        return stages, tuple(checks)

    def _chain_with_checks(self, cell: Cell) -> Iterator[tuple[Recipe, tuple[str, ...]]]:
        """Yield the ancestors and the recipe, each with the checks that it adds for the cell.

        Without CUDA, an image is for no GPU.
        """
        seen: set[str] = set()
        for recipe in self._project.chain(cell.recipe):
            new = [name for name in dict.fromkeys(recipe.checks) if name not in seen]
            seen.update(new)
            if cell.cuda == NONE:
                declared = self._project.checks
                new = [name for name in new if not {"cuda", "gpu"} & {*declared[name].needs}]
            yield recipe, tuple(new)

    def _stage(
        self,
        recipe: Recipe,
        checks: tuple[str, ...],
        cell: Cell,
        verdict: CellVerdict,
        names: Mapping[str, object],
    ) -> StageRecipe:
        sources = templates.source_names(recipe.name, recipe.sources, self._project.lock)
        context = {**names, "sources": sources}
        blocks = self._blocks(recipe.development, cell, context)
        expansions = [self._expanded(use, cell, verdict) for use in blocks]
        runtime = self._blocks(recipe.runtime, cell, context)
        variables: dict[str, str] = {}
        for expansion in expansions:
            variables = merged_environment(variables, expansion.environment)
        own = self._rendered(recipe.environment, context, recipe.where)
        variables = merged_environment(variables, own)
        return StageRecipe(
            name=recipe.name,
            version=recipe.version,
            about=recipe.about,
            development=tuple(use for expansion in expansions for use in expansion.development),
            runtime=(*(use for expansion in expansions for use in expansion.runtime), *runtime),
            environment={name: text for name, text in variables.items() if text},
            labels=self._rendered(recipe.labels, context, recipe.where),
            checks=checks,
            sources=recipe.sources,
            command=recipe.command,
            entrypoint=recipe.entrypoint,
        )

    def _blocks(
        self, uses: tuple[BlockUse, ...], cell: Cell, context: Mapping[str, object]
    ) -> Iterator[BlockUse]:
        for use in uses:
            if fits(cell, use.when):
                arguments = self._rendered(use.arguments, context, use.where)
                yield dataclasses.replace(use, arguments=arguments, when={})

    def _expanded(self, use: BlockUse, cell: Cell, verdict: CellVerdict) -> toolkits.Expansion:
        """Return the expansion of a block: itself, or the blocks of a toolkit's route."""
        if use.name == toolkits.MPI:
            assert verdict.mpi is not None
            return toolkits.expand_mpi(use, verdict.mpi)
        if use.name == toolkits.CUDA:
            assert verdict.cuda is not None
            base = self._project.bases[cell.base]
            return toolkits.expand_cuda(use, verdict.cuda, base, cell.arch)
        return toolkits.Expansion(development=(use,))

    def _check(self, name: str, verdict: CellVerdict, names: Mapping[str, object]) -> StageCheck:
        check = self._project.checks[name]
        run = self._rendered(check.run, names, check.where)
        if "mpi" in check.needs and verdict.mpi is not None and verdict.mpi.route == "host":
            run = _NO_LAUNCHER
        return StageCheck(
            name=check.name,
            about=check.about,
            sources={name: self._texts[name] for name in check.sources},
            build=tuple(self._rendered(check.build, names, check.where)),
            run=str(run),
            needs=check.needs,
            timeout_s=check.timeout_s,
        )

    def _rendered(self, value: object, context: Mapping[str, object], where: Where) -> Any:
        """Return a value for one cell; itself, and a fault, when a template cannot be rendered."""
        try:
            return templates.render(value, context)
        except templates.TemplateError as error:
            base = getattr(context["base"], "name", "")
            problem = f"the template fails for {base} {context['arch']}: {error}"
            valid = f"names: {templates.VALID_NAMES}"
            fault = Fault(
                file=where.file, line=where.line, key=where.key, problem=problem, valid=valid
            )
            self.faults.append(fault)
            return value


def read_text(path: Path) -> str:
    """Return the text of a file of the checks; raises `BadInput` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: this file of the checks cannot be read ({error})") from error
