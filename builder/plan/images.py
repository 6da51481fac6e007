"""Plan one image: everything that decides its content, and the content key."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder import __version__
from builder.model import (
    CUDA_ROUTES,
    GENERIC,
    NONE,
    RUNTIME,
    BaseImage,
    BlockUse,
    Cell,
    PlannedCuda,
    PlannedImage,
    PlannedMpi,
    Project,
    Recipe,
    StageCheck,
    StageRecipe,
    Where,
    merged_environment,
    templates,
)
from builder.model.contract import as_document, contract_of
from builder.model.digests import sha256_of_json
from builder.model.errors import BadInput, Fault
from builder.model.inputs import WHEEL_SOURCE, base_name
from builder.model.site import at_digest, at_mirror, layer_of
from builder.plan import nvidia, toolkits
from builder.plan.cells import CellToolkits, fits

KEY_FORMAT = "5"  # increased when the same inputs give a different image
_CHECKS = "tests/images"
_NO_LAUNCHER = "echo 'the MPI is the host'\\''s: none is in the image'; exit 77"


class Images:
    """Plans the images of one project; `faults` are templates that cannot be rendered."""

    def __init__(self, project: Project, compiler: str) -> None:
        self._project = project
        self._compiler = compiler
        read = functools.cache(lambda layers, name: read_text(layers.find(f"{_CHECKS}/{name}")))
        layers = {layer.name: project.layers.upto(layer.name) for layer in project.layers.each}
        self._texts = {
            check.name: {
                name: read(layers[layer_of(check.where.file)], name) for name in check.sources
            }
            for check in project.checks.values()
        }
        self._run_checks = read_text(project.layers.run_checks)
        self.faults: list[Fault] = []

    def of(self, cell: Cell, chosen: CellToolkits) -> PlannedImage:
        base, cuda, lock = self._project.bases[cell.base], chosen.cuda, self._project.lock
        registries = self._project.site.registries
        context = templates.names(cell, base, chosen.mpi, cuda)
        stages = tuple(
            self._stage(recipe, checks, cell, chosen, context)
            for recipe, checks in self._chain_with_checks(cell)
        )
        named = [name for stage in stages for name in stage.checks]
        layers = _layers(self._project, cell, named)
        names = (cuda and cuda.images) or [base_name(base, cell.arch)] * 2
        pinned = [lock.pinned(name, cell.arch) for name in names]
        base_image, runtime_image = (
            at_digest(at_mirror(name, registries), "" if pin == name else pin.partition("@")[2])
            for name, pin in zip(names, pinned, strict=True)
        )
        fetched = base_image if base_image != pinned[0] else ""
        image = PlannedImage(
            cell=cell,
            base=base,
            base_image=base_image,
            runtime_image=runtime_image,
            base_reference=pinned[0],
            runtime_reference=pinned[1],
            mpi=chosen.mpi,
            cuda=cuda,
            stages=stages,
            checks=tuple(self._check(name, chosen, context) for name in named),
            content_key="",
            decided=(*_decisions(base, cell, chosen, fetched), *_by_layer(layers)),
            sources=lock.of_stages(
                {stage.name: {*itertools.chain(*stage.sources.values())} for stage in stages}
            ),
            system=self._project.facts.system(base.distribution, base.version),
            layers=layers,
        )
        return dataclasses.replace(image, content_key=self._content_key(image))

    def _content_key(self, image: PlannedImage) -> str:
        base = image.base
        references = [image.base_reference, image.runtime_reference]
        about: list[object] = [self._compiler, base.hpccm_distro, base.distribution, image.prepare]
        about += [image.identifier, references]
        about += [[source.url, source.sha256] for source in image.sources]
        about.append(as_document(contract_of(image)))
        stages = [_stage_parts(stage) for stage in image.stages]
        checks = [_check_parts(check) for check in image.checks]
        parts = [KEY_FORMAT, __version__, about, stages, checks, self._run_checks]
        return sha256_of_json(parts)

    def _chain_with_checks(self, cell: Cell) -> Iterator[tuple[Recipe, tuple[str, ...]]]:
        """Yield the ancestors and the recipe, each with the checks that it adds for the cell.

        An image without CUDA gets no checks that need CUDA or a GPU.
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
        chosen: CellToolkits,
        names: Mapping[str, object],
    ) -> StageRecipe:
        sources = {
            name: tuple(
                self._rendered(url, names, recipe.where) if url.startswith(WHEEL_SOURCE) else url
                for url in urls
            )
            for name, urls in recipe.sources.items()
        }
        own_names = templates.source_names(recipe.name, sources, self._project.lock)
        context = {**names, "sources": own_names}
        blocks = tuple(self._blocks(recipe.development, cell, context))
        expansions = [self._expanded(use, recipe.name, cell, chosen) for use in blocks]
        wheels = {name: (url,) for one in expansions for name, url in one.wheels.items()}
        runtime = tuple(self._blocks(recipe.runtime, cell, context))
        text = str([use.arguments for use in (*blocks, *runtime)])
        # Blocks may download other sources than wheels by themselves.
        named = {
            name: urls
            for name, urls in sources.items()
            if not urls[0].startswith(WHEEL_SOURCE)
            or own_names[name].url in text
            or own_names[name].file in text
        }
        own = self._rendered(recipe.environment, context, recipe.where)
        environments = [*(expansion.environment for expansion in expansions), own]
        variables = functools.reduce(merged_environment, environments, dict[str, str]())
        return StageRecipe(
            name=recipe.name,
            version=recipe.version,
            about=recipe.about,
            where=recipe.where,
            development=tuple(use for expansion in expansions for use in expansion.development),
            runtime=(*(use for expansion in expansions for use in expansion.runtime), *runtime),
            environment={name: text for name, text in variables.items() if text},
            labels=self._rendered(recipe.labels, context, recipe.where),
            checks=checks,
            sources={**named, **wheels},
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

    def _expanded(
        self, use: BlockUse, recipe: str, cell: Cell, chosen: CellToolkits
    ) -> toolkits.Expansion:
        """Return the expansion of a block: the block itself, or the blocks of a toolkit's route."""
        if use.name == toolkits.MPI:
            assert chosen.mpi is not None
            return toolkits.expand_mpi(use, chosen.mpi)
        if use.name == toolkits.CUDA:
            assert chosen.cuda is not None
            base = self._project.bases[cell.base]
            file_of = functools.partial(templates.source_file, recipe, lock=self._project.lock)
            return toolkits.expand_cuda(use, chosen.cuda, base, cell.arch, file_of)
        return toolkits.Expansion(development=(use,))

    def _check(self, name: str, chosen: CellToolkits, names: Mapping[str, object]) -> StageCheck:
        check = self._project.checks[name]
        run = self._rendered(check.run, names, check.where)
        if "mpi" in check.needs and chosen.mpi is not None and chosen.mpi.route == "host":
            run = _NO_LAUNCHER
        return StageCheck(
            name=check.name,
            about=check.about,
            where=check.where,
            sources=self._texts[name],
            build=tuple(self._rendered(check.build, names, check.where)),
            run=str(run),
            needs=check.needs,
            timeout_s=check.timeout_s,
        )

    def _rendered(self, value: object, context: Mapping[str, object], where: Where) -> Any:
        """Return a value rendered for one cell; unchanged, with a fault, if that fails."""
        try:
            return templates.render(value, context)
        except templates.TemplateError as error:
            base = getattr(context["base"], "name", "")
            problem = f"the template cannot be rendered for {base} {context['arch']}: {error}"
            valid = f"valid: {templates.VALID_NAMES}"
            fault = Fault(
                file=where.file, line=where.line, key=where.key, problem=problem, valid=valid
            )
            self.faults.append(fault)
            return value


def _stage_parts(stage: StageRecipe) -> list[object]:
    uses = [
        [use.name, use.arguments, *([dict(use.files)] if use.files else ())]
        for use in (*stage.development, *stage.runtime)
    ]
    parts: list[object] = [stage.name, stage.version, stage.about, uses, len(stage.development)]
    parts += [stage.environment, stage.labels, stage.checks]
    if stage.command or stage.entrypoint:
        parts.append([stage.command, stage.entrypoint])
    return parts


def _check_parts(check: StageCheck) -> list[object]:
    about = [check.name, check.about, dict(check.sources), check.build]
    return [*about, check.run, check.needs, check.timeout_s]


def _layers(project: Project, cell: Cell, checks: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the layer that each recipe, base, axis and check of a cell is from."""
    if len(project.layers.each) == 1:
        return {}
    files = {
        "recipe": {recipe.name: recipe.where.file for recipe in project.chain(cell.recipe)},
        "base": {cell.base: project.bases[cell.base].where.file},
        "axis": project.matrix.files,
        "check": {name: project.checks[name].where.file for name in checks},
    }
    return {
        kind: {name: layer_of(file) for name, file in named.items()}
        for kind, named in files.items()
    }


def _by_layer(layers: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for layer in dict.fromkeys(name for named in layers.values() for name in named.values()):
        parts = [
            f"{kind} {', '.join(names)}"
            for kind, named in layers.items()
            if (names := [name for name, owner in named.items() if owner == layer])
        ]
        yield f"from {layer}: {'; '.join(parts)}"


_ROUTES = {
    **CUDA_ROUTES,
    nvidia.SDK_ROUTE: "NVIDIA's HPC SDK",
    nvidia.RECIPE_ROUTE: "the packages of the recipe, which says toolkit: false",
}


def _decisions(base: BaseImage, cell: Cell, chosen: CellToolkits, fetched: str) -> Iterator[str]:
    """Yield a line for each decision, with the file or fact that decided it.

    `fetched` is the base at a site's mirror of its registry; empty without one.
    """
    bootstrap = base.bootstrap
    origin = f"bootstrapped, suite {bootstrap.suite}" if bootstrap else base.references[cell.arch]
    yield f"base: {base.about}, {origin} ({base.where.file})"
    if fetched or base.mirrors:
        yield f"base: fetched from {fetched or ' and '.join(base.mirrors)} (site.yaml)"
    yield f"base: hpccm treats it as {base.hpccm_distro}"
    if ended := base.end_of_life:
        yield f"base: end of life since {ended.since}: {ended.about}"
    if chosen.cuda:
        yield from _cuda(base, chosen.cuda)
    if chosen.mpi:
        yield _mpi(base, chosen.mpi)
    if cell.flavour != RUNTIME:
        yield f"flavour: {cell.flavour}: compilers and headers stay in the image"
    if cell.cpu != GENERIC:
        yield f"cpu target: {cell.cpu}: programs built from source need this CPU or a newer one"


def _cuda(base: BaseImage, cuda: PlannedCuda) -> Iterator[str]:
    release = cuda.update or cuda.version
    decider = f" ({base.where.file}: cuda)" if cuda.route in CUDA_ROUTES else ""
    decider = f" {cuda.sdk}, named in the recipe" if cuda.sdk else decider
    yield f"cuda: {release} from {_ROUTES[cuda.route]}{decider}"
    if cuda.images:
        yield f"cuda: stages start from {cuda.images[0]} and {cuda.images[1]}"
    yield from (f"cuda: {note}" for note in cuda.notes)
    yield f"cuda: minimum driver {cuda.driver or 'not known'}"
    yield f"cuda: code for {', '.join(f'sm_{capability}' for capability in cuda.capabilities)}"
    if compiler := cuda.gcc or cuda.packages.gcc:
        own = base.gcc[0] if base.gcc else "not known"
        yield f"cuda: nvcc compiles with gcc {compiler}; the base's default is {own}"


def _mpi(base: BaseImage, mpi: PlannedMpi) -> str:
    how = {
        "package": f"the distribution's package ({base.where.file}: mpi.{mpi.family})",
        "source": "built from source by hpccm's block",
        "host": "bound in from the host; programs are built with an MPI of the same ABI",
    }[mpi.route]
    return f"mpi: {mpi.family} {mpi.version}, {how}"


def read_text(path: Path) -> str:
    """Return the text of a check's file; raises `BadInput` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot read this file of a check ({error})") from error
