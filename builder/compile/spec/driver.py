"""Drive hpccm: compile a planned image to a Dockerfile and a Singularity definition.

hpccm keeps process-wide state, and renders a block when it is converted to text. So each text is
rendered in one step: set the state, build new stages, render them. hpccm's warnings are errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import hpccm.config
from hpccm.primitives import baseimage, comment, environment, label, raw, shell
from hpccm.primitives import copy as copy_files

from builder.compile.spec import image_scripts as scripts
from builder.compile.spec.downloads import with_sources
from builder.compile.spec.hpccm_blocks import (
    block_object,
    check,
    complaints,
    prerequisites,
    runtime_prerequisites,
)
from builder.compile.spec.quirks import corrected, repeatable, step_by_step, target_of
from builder.compile.spec.rules import PRIMITIVES, fault
from builder.model import (
    DEVELOPMENT,
    GENERIC,
    NONE,
    RUNTIME,
    BlockUse,
    Origin,
    PlannedImage,
    StageRecipe,
    Where,
    merged_environment,
    planned,
)
from builder.model.contract import FILE as CONTRACT
from builder.model.contract import IN_IMAGE as CONTRACT_IN_IMAGE
from builder.model.contract import as_labels, contract_of
from builder.model.errors import BadInput, Fault

SINGULARITY_VERSION = "3.6"  # the first version with multi-stage definitions and isolated %files
_SPECIAL = frozenset(" \t'\"\\#;&|()<>")


def dockerfile(image: PlannedImage) -> str:
    """Return the Dockerfile: one stage for each recipe of the chain, then the run-time stage."""
    return placed_dockerfile(image)[0]


def placed_dockerfile(image: PlannedImage) -> tuple[str, tuple[Origin, ...]]:
    """Return the Dockerfile, and the places in the project's files that its lines come from."""
    with _state("docker", image):
        source = image.base_image
        stages: list[StageText] = []
        for recipe in image.stages:
            name = f"{recipe.name}-{DEVELOPMENT}"
            stage = _stage(image, source, name, is_stage=bool(stages))
            _develop(stage, image, recipe)
            stages.append(stage)
            source = stage.name
        final = _final(image, stages, image.runtime_image)
        of_nvidia = bool(image.cuda and image.cuda.images)  # its entry point prints a banner
        for line in scripts.docker_lines(image, clears_entrypoint=of_nvidia):
            final.add(raw(docker=line), image.stages[-1].where)
        return _text(image, *stages, final)


def singularity(image: PlannedImage) -> str:
    """Return the definition: a development stage for the whole chain, then the run-time stage."""
    with _state("singularity", image):
        archive = scripts.base_archive(image) if image.is_bootstrapped else ""
        stage = _stage(image, archive or image.base_image, DEVELOPMENT)
        for recipe in image.stages:
            _develop(stage, image, recipe)
        if image.cell.flavour == DEVELOPMENT:  # no stage of a definition starts from another
            final, stages = stage, [stage]
            _finish(final, image, stage.name)
        else:
            final = _final(image, [stage], archive or image.runtime_image)
            stages = [stage, final]
        final.add(raw(singularity="\n\n".join(sections_of(image))), image.stages[-1].where)
        return step_by_step(_text(image, *stages)[0])


@contextlib.contextmanager
def _state(container_format: str, image: PlannedImage) -> Iterator[None]:
    hpccm.config.set_container_format(container_format)
    hpccm.config.set_singularity_version(SINGULARITY_VERSION)
    hpccm.config.set_cpu_target(None if image.cell.cpu == GENERIC else image.cell.cpu)
    hpccm.config.set_working_directory("/var/tmp")  # noqa: S108 - a path in the image
    if container_format == "docker":  # the first of two texts with the same blocks
        check(image)
    with complaints() as logged:
        try:
            yield
        except BadInput as error:  # of one block: report the faults of all
            raise BadInput.of(_faults(image)) from error
    if logged:
        raise BadInput(f"{image.identifier}: hpccm warns: {'; '.join(logged)}")


def _faults(image: PlannedImage) -> list[Fault]:
    faults: list[Fault] = []
    for recipe in image.stages:
        for use in (*recipe.development, *recipe.runtime):
            try:
                layer(use, image, recipe, DEVELOPMENT)
            except BadInput as error:
                faults += error.faults
    return faults


_SEPARATOR = "\n\n"  # between layers of a stage
_BETWEEN = "\n\n\n"  # between stages


@dataclass(frozen=True, kw_only=True, slots=True)
class StageText:
    """A stage of a spec, as hpccm's `Stage`, that keeps where each of its layers comes from."""

    name: str
    layers: list[tuple[object, Where]] = field(default_factory=list)

    def add(self, layer: object, where: Where) -> None:
        """Add a layer: text, or an object that hpccm renders."""
        self.layers.append((layer, where))

    def remainders(self) -> Iterator[tuple[str, Where]]:
        """Yield the texts of its layers for the run-time stage."""
        for layer, where in self.layers:
            if text := _remainder(layer, self.name):
                yield text, where


def _stage(image: PlannedImage, source: str, name: str, *, is_stage: bool = False) -> StageText:
    """Return a stage that starts from an image, and prepares its repositories, or from a stage."""
    stage = StageText(name=name)
    base = baseimage(
        image=source,
        _as=name,
        _arch=image.cell.arch,
        _distro=image.base.hpccm_distro,
        _bootstrap="oci-archive" if image.is_bootstrapped else "docker",
    )
    stage.add(base, image.base.where)
    if image.prepare and not is_stage:
        stage.add(shell(commands=list(image.prepare)), image.base.where)
    return stage


def _develop(stage: StageText, image: PlannedImage, recipe: StageRecipe) -> None:
    title = comment(f"{recipe.name} {recipe.version}: {recipe.about}", reformat=False)
    stage.add(title, recipe.where)
    if needed := prerequisites(image, recipe):
        stage.add(needed, recipe.where)
    for use in recipe.development:
        stage.add(layer(use, image, recipe, stage.name), use.where)
    places = [check.where for check in image.checks if check.name in recipe.checks and check.build]
    if sources := scripts.stage_sources(image, recipe):
        copied = copy_files(src=sources, dest=f"{scripts.SOURCES}/")
        stage.add(copied, _joint(places) or recipe.where)
    if commands := scripts.stage_builds(image, recipe):
        stage.add(shell(commands=commands), _joint(places) or recipe.where)


def _joint(places: Sequence[Where]) -> Where | None:
    """Return the place of the first, with the keys of all: one step makes them."""
    keys = ", ".join(place.key for place in places)
    return dataclasses.replace(places[0], key=keys) if places else None


def _final(image: PlannedImage, development: list[StageText], source: str) -> StageText:
    """Return the stage that becomes the image: the run-time stage, or the development stage."""
    own = image.stages[-1].where
    if image.cell.flavour == DEVELOPMENT:
        final = _stage(image, development[-1].name, DEVELOPMENT, is_stage=True)
    else:
        final = _stage(image, source, RUNTIME)
        remainders = [one for stage in development for one in stage.remainders()]
        if needed := runtime_prerequisites(image, "".join(text for text, _ in remainders)):
            final.add(needed, own)
        for text, where in remainders:
            final.add(text, where)
    _finish(final, image, development[-1].name)
    return final


def _finish(final: StageText, image: PlannedImage, built: str) -> None:
    """Add the recipes' run-time blocks, the environment, the checks and the labels."""
    own = image.stages[-1].where
    for recipe in image.stages:
        for use in recipe.runtime:
            final.add(layer(use, image, recipe), use.where)
    environments = (stage.environment for stage in image.stages)
    if variables := functools.reduce(merged_environment, environments, dict[str, str]()):
        quoted = {key: _quoted(text) for key, text in variables.items()}
        final.add(environment(variables=quoted), own)
    has_files = any(check.sources or check.build for check in image.checks)
    if has_files and image.cell.flavour == RUNTIME:
        final.add(copy_files(_from=built, src=scripts.IN_IMAGE, dest=scripts.IN_IMAGE), own)
    if image.checks:  # last, so that earlier layers do not depend on them
        names = [f"files/checks/{name}" for name in scripts.script_names(image)]
        final.add(copy_files(src=names, dest=f"{scripts.SCRIPTS}/"), own)
        final.add(copy_files(src="files/run-checks", dest=scripts.RUN_CHECKS), own)
    if scripts.has_run_script(image):
        final.add(copy_files(src=scripts.IN_SPEC, dest=scripts.RUN), own)
    final.add(copy_files(src=CONTRACT, dest=CONTRACT_IN_IMAGE), own)
    final.add(label(metadata=_labels(image)), own)


def _labels(image: PlannedImage) -> dict[str, str]:
    recipe = image.stages[-1]
    own = {  # of this image alone: a child has its own
        "org.opencontainers.image.title": recipe.name,
        "org.opencontainers.image.version": recipe.version,
        "org.opencontainers.image.description": recipe.about,
    }
    inherited = {key: text for stage in image.stages for key, text in stage.labels.items()}
    labels = {
        **own,
        "org.opencontainers.image.base.name": image.final_reference.partition("@")[0],
        "build-images.identifier": image.identifier,
        "build-images.arch": image.cell.arch,
        "build-images.mpi": f"{image.mpi.family} {image.mpi.version}" if image.mpi else NONE,
        "build-images.cuda": image.cell.cuda,
        "build-images.flavour": image.cell.flavour,
        "build-images.cpu-target": image.cell.cpu,
        **{key: text for key, text in inherited.items() if key not in own},
        **recipe.labels,
        **as_labels(contract_of(image)),
    }
    if hpccm.config.get_format() == "docker":
        return {key: _quoted(value) for key, value in labels.items()}
    return labels


def sections_of(image: PlannedImage) -> list[str]:
    """Return the sections that only the Singularity definition of an image has."""
    about, runs_own = image.stages[-1].about, scripts.has_run_script(image)
    return singularity_sections(about, has_checks=bool(image.checks), runs_own=runs_own)


def singularity_sections(about: str, *, has_checks: bool, runs_own: bool = False) -> list[str]:
    """Return %test, %runscript and %help, which a SIF cannot get from an OCI image.

    `runs_own`: a recipe sets the command or entry point of the image.
    """
    run = planned.OWN_RUNSCRIPT if runs_own else planned.RUNSCRIPT
    sections = [f"%runscript\n    {run}", f"%help\n    {about}"]
    if has_checks:
        sections.insert(0, f"%test\n    {planned.TEST}")
        sections[-1] += f"\n    The image's checks: {scripts.RUN_CHECKS}, or: apptainer test IMAGE"
    return sections


def _quoted(value: str) -> str:
    """Return a value quoted for both formats: in double quotes, so that `$PATH` is expanded."""
    return json.dumps(value, ensure_ascii=False) if set(value) & _SPECIAL else value


def _text(image: PlannedImage, *stages: StageText) -> tuple[str, tuple[Origin, ...]]:
    """Return a spec's text, and the places that its lines come from; corrections keep its lines."""
    archive = f", an OCI archive: {scripts.base_archive(image)}" if image.is_bootstrapped else ""
    header = [
        f"# {image.identifier}: {image.stages[-1].about}",
        f"# Compiled from recipes/{image.cell.recipe}.yaml by build-images; do not edit.",
        f"# Base image: {image.base_image}{archive}",
    ]
    texts, origins, line = list[str](), list[Origin](), len(header) + 2
    for stage in stages:
        layers = [(str(layer), where) for layer, where in stage.layers]
        texts.append(_SEPARATOR.join(text for text, _ in layers))
        for text, where in layers:
            last = line + text.count("\n")
            origins.append(Origin(first=line, last=last, where=where))
            line = last + len(_SEPARATOR)
        line += len(_BETWEEN) - len(_SEPARATOR)
    text = corrected(_BETWEEN.join(texts), target_of(image))
    return "\n".join([*header, "", text, ""]), tuple(origins)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockText:
    """A block's text, as hpccm renders it; a stage accepts it in place of the block.

    `remainder` is its text for the run-time stage.
    """

    text: str
    remainder: str

    def __str__(self) -> str:
        return self.text

    def runtime(self, _from: str) -> str:
        return self.remainder


def layer(use: BlockUse, image: PlannedImage, recipe: StageRecipe, stage: str = "") -> BlockText:
    """Return a recipe's block as text, for the named stage; hpccm's state must be the image's.

    Raises `BadInput` if hpccm refuses the block, or warns about it.
    """
    with complaints() as logged:
        try:
            objects = with_sources(use, image, recipe, lambda use: block_object(use, image))
            text = _SEPARATOR.join(map(str, objects))
            remainders = [_remainder(block, stage) for block in objects] if stage else []
        except BadInput:
            raise
        except Exception as error:  # most blocks check their arguments only when rendered
            raise BadInput.of([fault(use, f"hpccm refuses this block: {error}")]) from error
    if logged:
        raise BadInput.of([fault(use, f"hpccm warns: {warning}") for warning in logged])
    if use.name not in PRIMITIVES:  # a recipe's own commands stay as they are
        text = repeatable(text)
    return BlockText(text=text, remainder=_SEPARATOR.join(filter(None, remainders)))


def _remainder(block: object, stage: str) -> str:
    """Return a block's text for run time; empty if hpccm's block returns None."""
    runtime = getattr(block, "runtime", None)
    return str((callable(runtime) and runtime(_from=stage)) or "")
