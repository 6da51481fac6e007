"""A shell in an image as it was built, or in a stage of its last build."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from builder.artifacts.oci import read_layout
from builder.build.engines import Buildah, Tools
from builder.build.workspace import failed_step
from builder.model.cells import image_tag, stage_tag
from builder.model.errors import BadInput, BuildStep, MissingPrerequisite
from builder.model.manifest import FILES, Manifest
from builder.system.process import Processes
from builder.verify.finished_images import finished, within_reach, work_folder
from builder.verify.runners import RUNNERS
from builder.verify.runners.oci import Chroot
from builder.verify.runners.protocol import Container, CopiesDriver, Kind, Prefixed, Runner

SHELLS = ("buildah", "apptainer", "charliecloud")  # runners that can share the terminal
_SHELL = "TERM=$0; export TERM; if command -v bash >/dev/null; then exec bash; else exec sh; fi"


def shell(
    folder: Path,
    tools: Tools,
    argv: Sequence[str],
    *,
    stage: str = "",
    runner: str = "",
    say: Callable[[str], object],
) -> int:
    """Run a command, or a shell, in a stage of an image's last build, or in the image.

    Without a `stage`, it is the one that failed, if one did. Returns the exit status.
    """
    stages, step = stages_of(folder)
    name = stage or (step.stage if step else "")
    if not name:
        return shell_in_image(folder, tools, argv, runner=runner)
    if name not in stages:
        raise BadInput(f"unknown stage: {name}", hint=f"stages: {', '.join(stages)}")
    if step and step.engine != Buildah.name:
        raise MissingPrerequisite(
            f"{step.engine} built the stage {name}: only Buildah's stages can be entered",
            hint=f"build it with Buildah: build-images --engine buildah --image {folder.name}",
        )
    if step and name == step.stage:
        lines = [f"{name}, before the step that failed:", step.instruction, step.where]
        say("\n  ".join(filter(None, lines)))
    return shell_in_stage(tools, stages[name], argv)


def shell_in_image(folder: Path, tools: Tools, argv: Sequence[str], *, runner: str = "") -> int:
    """Run a command, or a shell, in a built image as its checks run; return its exit status.

    Without a `runner`, it is the first of `SHELLS` that this machine has for a format of the image.
    """
    manifest = finished(folder)
    kind = _kind(manifest, tools, runner)
    with work_folder(tools) as work:
        artifact = within_reach(kind.format, manifest.artifacts[kind.format], folder, work)
        container = Container(
            artifact=artifact.path,
            work=work,
            tools=tools,
            directory=read_layout(folder / FILES["oci"]).directory,
        )
        with kind.open(container) as opened:
            prefixed, command = _prefixed(opened), _command(argv)
            return tools.processes.interactive(
                [*prefixed.prefix, *(_unhurried(command) if kind.name == "buildah" else command)],
                env={**tools.environment, **prefixed.env},
                user=prefixed.user,
                cwd=prefixed.cwd,
            )


def _kind(manifest: Manifest, tools: Tools, runner: str) -> Kind:
    kinds = [RUNNERS[name] for name in ([runner] if runner else SHELLS)]
    kinds = [kind for kind in kinds if kind.format in manifest.artifacts]
    if not kinds:
        formats = ", ".join(manifest.artifacts)
        raise BadInput(f"{runner}: {manifest.image} has only {formats}")
    for kind in kinds:
        if tools.has(kind.program):
            return kind
    names = ", ".join(kind.program for kind in kinds)
    raise MissingPrerequisite(
        f"this machine has none of {names}", hint="'build-images doctor' says how to get them"
    )


def _prefixed(runner: Runner) -> Prefixed:
    while isinstance(runner, Chroot | CopiesDriver):
        runner = runner.inner
    assert isinstance(runner, Prefixed)
    return runner


def _command(argv: Sequence[str]) -> list[str]:
    return [*argv] or ["sh", "-c", _SHELL, os.environ.get("TERM", "dumb")]


def _unhurried(command: Sequence[str]) -> list[str]:
    """Return a command whose end is not lost: see `Chroot`."""
    return ["sh", "-c", '"$@"; status=$?; sleep 1; exit $status', "sh", *command]


def stages_of(folder: Path) -> tuple[Mapping[str, str], BuildStep | None]:
    """Return what the engine calls the stages of an image's last build, and its failed step.

    If a step failed, its own stage is among them, as it was before the step.
    """
    if step := failed_step(folder):
        return {**step.stages, step.stage: step.layer}, step
    manifest = finished(folder)
    tags = {target: stage_tag(key) for target, key in manifest.inputs.stages.items()}
    last = {manifest.cell.flavour: image_tag(manifest.image, manifest.content_key)}
    return {**tags, **last}, None


def shell_in_stage(tools: Tools, layer: str, argv: Sequence[str]) -> int:
    """Run a command, or a shell, on a layer of the builder's storage as a build step runs.

    What it changes is discarded. Returns the exit status of the command.
    """
    with _container(tools, layer) as (buildah, name):
        command = ["run", "--isolation=chroot", name, "--", *_unhurried(_command(argv))]
        return tools.processes.interactive(buildah.command(*command), env=buildah.environment)


@contextlib.contextmanager
def _container(tools: Tools, layer: str) -> Iterator[tuple[Buildah, str]]:
    buildah = Buildah(tools)
    if not buildah.has(layer):
        raise BadInput(
            "the builder's storage does not have this stage any more",
            hint="build the image again; 'build-images gc' may have removed it",
        )
    created = tools.processes.capture(buildah.command("from", layer), env=buildah.environment)
    name = created.stdout.split()[-1]
    try:
        yield buildah, name
    finally:
        Processes().capture(buildah.command("rm", name), env=buildah.environment, check=False)
