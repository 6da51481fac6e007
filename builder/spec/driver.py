"""The hpccm driver: a planned image to the text of a Dockerfile and a Singularity definition.

hpccm keeps process-wide state, and renders a block when it is turned to text. So each text is
made in one go: state set, fresh stages built, rendered. Its warnings are errors.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import hpccm
import hpccm.config
from hpccm.primitives import baseimage, comment, environment, label, raw, shell
from hpccm.primitives import copy as copy_files

from builder.errors import BadInput, Fault
from builder.model import NONE, BlockUse, PlannedImage, StageRecipe
from builder.spec.blocks import catalogue
from builder.spec.checks import (
    IN_IMAGE,
    RUN_CHECKS,
    SCRIPTS,
    SOURCES,
    script_names,
    stage_builds,
    stage_sources,
)

SINGULARITY_VERSION = "3.6"  # the first whose definitions are multi-stage and isolate %files
RUNTIME = "runtime"
DEVELOPMENT = "development"

# Beginnings of warnings that say nothing about the text that hpccm makes, each with the reason.
_EXPLAINED_WARNINGS = (
    'unrecognized CPU target "None"',  # none is meant: the text is for any CPU of the architecture
)
_SPECIAL = frozenset(" \t'\"\\#;&|()<>")


def dockerfile(image: PlannedImage) -> str:
    """The Dockerfile: one stage a recipe of the chain, then the run-time stage."""
    with _state("docker", image):
        source = image.base_image
        stages: list[Any] = []
        for recipe in image.stages:
            stage = _stage(image, source, f"{recipe.name}-{DEVELOPMENT}")
            _develop(stage, image, recipe)
            stages.append(stage)
            source = stage.name
        _add_check_scripts(stages[-1], image)
        runtime = _runtime(image, stages, image.base_image)
        runtime += raw(docker='CMD ["/bin/bash"]')
        return _text(image, *stages, runtime)


def singularity(image: PlannedImage) -> str:
    """The definition: a development stage for the whole chain, then the run-time stage."""
    with _state("singularity", image):
        source = base_archive(image) if image.base.bootstrap else image.base_image
        stage = _stage(image, source, DEVELOPMENT)
        for recipe in image.stages:
            _develop(stage, image, recipe)
        _add_check_scripts(stage, image)
        runtime = _runtime(image, [stage], source)
        runtime += raw(singularity=_sections(image))
        return _text(image, stage, runtime)


def base_archive(image: PlannedImage) -> str:
    """The name, in the spec's folder, of the OCI archive that the definition starts from."""
    return f"{image.base.name}-{image.cell.arch}.oci.tar"


@contextlib.contextmanager
def _state(container_format: str, image: PlannedImage) -> Iterator[None]:
    hpccm.config.set_container_format(container_format)
    hpccm.config.set_singularity_version(SINGULARITY_VERSION)
    hpccm.config.set_cpu_target(None)
    hpccm.config.set_working_directory("/var/tmp")  # noqa: S108 - a path in the image
    with _warnings_are_errors():
        try:
            yield
        except BadInput:
            raise
        except Exception as error:  # most blocks look at their arguments when they become text
            raise _culprit(image, error) from error


def _stage(image: PlannedImage, source: str, name: str) -> Any:
    stage = hpccm.Stage(name=name)
    bootstrapped = image.base.bootstrap is not None
    stage += baseimage(
        image=source,
        _as=name,
        _arch=image.cell.arch,
        _distro=image.base.hpccm_distro,
        _bootstrap="oci-archive" if bootstrapped else "docker",
    )
    return stage


def _develop(stage: Any, image: PlannedImage, recipe: StageRecipe) -> None:
    stage += comment(f"{recipe.name} {recipe.version}: {recipe.about}", reformat=False)
    for use in recipe.development:
        stage += _block(use)
    if sources := stage_sources(image, recipe):
        stage += copy_files(src=sources, dest=f"{SOURCES}/")
    if commands := stage_builds(image, recipe):
        stage += shell(commands=commands)


def _add_check_scripts(stage: Any, image: PlannedImage) -> None:
    if image.checks:
        scripts = [f"files/checks/{name}" for name in script_names(image)]
        stage += copy_files(src=scripts, dest=f"{SCRIPTS}/")
        stage += copy_files(src="files/run-checks", dest=RUN_CHECKS)


def _runtime(image: PlannedImage, development: list[Any], source: str) -> Any:
    """The run-time stage: what each block leaves for run time, then what the recipes add."""
    runtime = _stage(image, source, RUNTIME)
    for stage in development:
        if text := stage.runtime(_from=stage.name):
            runtime += text
    for recipe in image.stages:
        for use in recipe.runtime:
            runtime += _block(use)
    if variables := _merged([recipe.environment for recipe in image.stages]):
        runtime += environment(variables={key: _quoted(text) for key, text in variables.items()})
    if image.checks:
        runtime += copy_files(_from=development[-1].name, src=IN_IMAGE, dest=IN_IMAGE)
    runtime += label(metadata=_labels(image))
    return runtime


def _merged(mappings: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """One mapping of several; a child's value wins over its parent's."""
    merged: dict[str, str] = {}
    for mapping in mappings:
        merged.update(mapping)
    return merged


def _labels(image: PlannedImage) -> dict[str, str]:
    recipe = image.stages[-1]
    labels = {
        "org.opencontainers.image.title": recipe.name,
        "org.opencontainers.image.version": recipe.version,
        "org.opencontainers.image.description": recipe.about,
        "org.opencontainers.image.base.name": image.base_image,
        "build-images.identifier": image.identifier,
        "build-images.arch": image.cell.arch,
        "build-images.mpi": f"{image.mpi.family} {image.mpi.version}" if image.mpi else NONE,
        "build-images.cuda": image.cell.cuda,
        **_merged([stage.labels for stage in image.stages]),
    }
    if hpccm.config.get_format() == "docker":
        return {key: _quoted(value) for key, value in labels.items()}
    return labels


def _sections(image: PlannedImage) -> str:
    """The sections that only a Singularity definition has."""
    return "\n\n".join(singularity_sections(image.stages[-1].about, has_checks=bool(image.checks)))


def singularity_sections(about: str, *, has_checks: bool) -> list[str]:
    """%test, %runscript and %help, which no OCI image can carry into a SIF."""
    run = '%runscript\n    if [ $# -gt 0 ]; then exec "$@"; else exec /bin/bash; fi'
    sections = [run, f"%help\n    {about}"]
    if has_checks:
        sections.insert(0, f"%test\n    {RUN_CHECKS}")
        sections[-1] += f"\n    The image's checks: {RUN_CHECKS}, or: apptainer test IMAGE"
    return sections


def _block(use: BlockUse) -> Any:
    try:
        return catalogue()[use.name](**copy.deepcopy(dict(use.arguments)))
    except BadInput:
        raise
    except Exception as error:
        raise _refused(use, error) from error


def _culprit(image: PlannedImage, error: Exception) -> BadInput:
    """The block that cannot be turned to text, found by trying each by itself."""
    for use in [use for recipe in image.stages for use in (*recipe.development, *recipe.runtime)]:
        try:
            made = _block(use)
            str(made)
            str(made.runtime() if hasattr(made, "runtime") else "")
        except BadInput as known:
            return known
        except Exception as found:
            return _refused(use, found)
    return BadInput(f"{image.identifier}: hpccm cannot compile it: {error}")


def _refused(use: BlockUse, error: Exception) -> BadInput:
    fault = Fault(
        file=use.where.file,
        line=use.where.line,
        key=use.where.key,
        problem=f"hpccm refuses this block: {error}",
    )
    return BadInput.of([fault])


def _quoted(value: str) -> str:
    """A value as both formats read it: in double quotes, so that `$PATH` still expands."""
    return json.dumps(value, ensure_ascii=False) if set(value) & _SPECIAL else value


def _text(image: PlannedImage, *stages: Any) -> str:
    base = image.base_image
    header = [
        f"# {image.identifier}: {image.stages[-1].about}",
        f"# Compiled from recipes/{image.cell.recipe}.yaml by build-images; do not edit.",
        f"# Base image: {base}{_where(image)}",
    ]
    return "\n".join([*header, "", "\n\n\n".join(str(stage) for stage in stages), ""])


def _where(image: PlannedImage) -> str:
    return f", an OCI archive: {base_archive(image)}" if image.base.bootstrap else ""


class _WarningsAreErrors(logging.Handler):
    """Gathers what hpccm logs; it uses the root logger for all of it."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if not message.startswith(_EXPLAINED_WARNINGS):
            self.messages.append(message)


@contextlib.contextmanager
def _warnings_are_errors() -> Iterator[None]:
    handler = _WarningsAreErrors()
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
    if handler.messages:
        raise BadInput("hpccm warns: " + "; ".join(dict.fromkeys(handler.messages)))
