"""Commands of users in an image as it was built, or in a stage of its last build.

A shell shares the terminal. A program is measured, too: a script in the container starts it, and
leaves what it knows of it in a folder of this machine. So the program's streams are untouched, and
its exit status is known, whatever the container's runtime prints or returns.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from builder.artifacts.oci import Layout, read_layout
from builder.build.engines import Buildah, Tools
from builder.build.run import now
from builder.build.workspace import failed_step
from builder.host.doctor import lacking_ids
from builder.host.doctor.diagnosis import SystemRoots
from builder.host.doctor.emulation import emulation_item
from builder.host.doctor.programs import Programs
from builder.model.architectures import ARCHITECTURES
from builder.model.cells import image_tag, stage_tag
from builder.model.errors import BadInput, BuildStep, MissingPrerequisite, StepFailed
from builder.model.manifest import FILES, Manifest
from builder.model.measurement import BARE, HostFacts, PlaceFacts, ProgramRun, Use, program_of
from builder.system.host_facts import host_facts
from builder.system.process import Processes
from builder.verify.container_output import NOTES_AT, NOTING_SCRIPT, ProgramNotes
from builder.verify.finished_images import read_finished, within_reach
from builder.verify.measure.sampling import ProcessLoad, Sampler, gpu_sampler, use_of
from builder.verify.runners import DEFAULTS, RUNNERS
from builder.verify.runners.oci import Chroot
from builder.verify.runners.protocol import (
    NOBODY,
    Container,
    CopiesDriver,
    Kind,
    Prefixed,
    Runner,
    readable_folder,
)
from builder.verify.runners.sites import BARE_FORMAT, bare_kind

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
    manifest = read_finished(folder)
    kind = _kind(manifest, tools, runner)
    with readable_folder(tools.home.work, "verify-") as work:
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
    lacking = None
    for kind in kinds:
        if tools.has(kind.program) and not (lacking := lacking_ids(kind.name, SystemRoots())):
            return kind
    if lacking:
        raise MissingPrerequisite(f"{lacking.title}: {lacking.text}", hint=lacking.remedy)
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
    manifest = read_finished(folder)
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


# ---- A program that is measured ----

_TICK_S = 0.004  # by which the times of files are known


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramRequest:
    """A program to run: in a format, by default in the first that this machine can run, or bare.

    `binds` are folders of this machine by their paths in the container. `umask` is that of whoever
    makes the request: later, the builder has another (builder.build.at_work).
    """

    argv: tuple[str, ...]
    format: str = ""
    bare: bool = False
    binds: Mapping[str, Path] = field(default_factory=dict)
    umask: int = field(default_factory=_umask)


def run_program(
    folder: Path, tools: Tools, request: ProgramRequest, *, say: Callable[[str], object]
) -> ProgramRun:
    """Run a program on this process's streams to its end; return what it took.

    Raises `StepFailed` if the container did not start.
    """
    manifest, host = read_finished(folder), host_facts()
    layout = read_layout(folder / FILES["oci"])
    kind = _kind_for(manifest, tools, request, layout)
    emulator = _emulator(manifest, tools, host)
    if emulator:
        say(f"emulated by {emulator}: its times say nothing about a real {manifest.cell.arch}")
    no_gpu = _no_gpu(manifest, kind, tools, host)
    name, version = BARE if request.bare else kind.format, tools.version(kind.program)
    container = Container(
        artifact=folder / FILES[kind.format],
        work=folder,
        tools=tools,
        directory=layout.directory,
        gpu=not no_gpu,
        binds=request.binds,
    )
    described = partial(
        ProgramRun,
        image=manifest.image,
        arch=manifest.cell.arch,
        content_key=manifest.content_key,
        digest=manifest.artifacts[kind.format].digest,
        place=PlaceFacts(name=name, runner=kind.program, version=version),
        argv=request.argv,
        binds=tuple(request.binds),
        host=host,
        emulator=emulator,
        no_gpu=no_gpu,
    )
    return _run_in_copy(container, kind, manifest, request, described, say)


def _run_in_copy(
    container: Container,
    kind: Kind,
    manifest: Manifest,
    request: ProgramRequest,
    described: Callable[..., ProgramRun],
    say: Callable[[str], object],
) -> ProgramRun:
    """Run a program in a copy of the container's artifact, which its user can read.

    `described` returns the record of the run, and gets what was measured.
    """
    measured, folder = None, container.work
    try:
        with readable_folder(container.tools.home.work, "verify-") as work:
            artifact = within_reach(kind.format, manifest.artifacts[kind.format], folder, work)
            notes = ProgramNotes(folder=work / "run")
            notes.folder.mkdir(mode=0o700)
            binds = {**container.binds, NOTES_AT: notes.folder}
            container = replace(container, artifact=artifact.path, work=work, binds=binds)
            with kind.open(container) as opened:
                measured = _measured(opened, container.tools, kind, request, notes, described)
    except OSError as error:  # after its end: what it left cannot be removed
        if measured is None:
            raise
        say(f"build-images: {error}")
    return measured


def _kind_for(manifest: Manifest, tools: Tools, request: ProgramRequest, layout: Layout) -> Kind:
    form = BARE_FORMAT if request.bare else request.format
    if form and form not in manifest.artifacts:
        raise BadInput(
            f"{manifest.image}: {form} is not built, only {', '.join(manifest.artifacts)}",
            hint=f"build-images --image {manifest.image}",
        )
    if request.bare:
        return bare_kind(layout.environment)
    return _kind(manifest, tools, DEFAULTS[form] if form else "")


def _emulator(manifest: Manifest, tools: Tools, host: HostFacts) -> str:
    """Return the emulator of an image; raises `MissingPrerequisite` if there is none."""
    arch = ARCHITECTURES[manifest.cell.arch]
    if arch.name == host.arch:
        return ""
    programs = Programs(tools.processes, tools.home.search_path())
    item = emulation_item(arch, host=host.arch, roots=SystemRoots(), programs=programs)
    if not item.ok:
        problem = f"its programs are of {arch.name}, this machine is {host.arch}: {item.text}"
        raise MissingPrerequisite(f"{manifest.image}: {problem}", hint=item.remedy)
    return f"qemu {item.data.get('version', '')}".strip()


def _no_gpu(manifest: Manifest, kind: Kind, tools: Tools, host: HostFacts) -> str:
    """Return why GPUs are not passed to the program; empty if they are."""
    if manifest.cell.cuda == "none":
        return "the image has no CUDA"
    if not host.driver:
        return "no NVIDIA driver is loaded on this host"
    return "bare has none of the driver's files" if kind.name == BARE else kind.no_gpu(tools)


def _measured(
    opened: Runner,
    tools: Tools,
    kind: Kind,
    request: ProgramRequest,
    notes: ProgramNotes,
    described: Callable[..., ProgramRun],
) -> ProgramRun:
    if isinstance(opened, CopiesDriver):
        opened.copy_driver()
    prefixed = _prefixed(opened)
    if tools.ordinary_user:  # the caller is root: only the program's user may write notes
        shutil.chown(notes.folder, prefixed.user or int(NOBODY.partition(":")[0]))
    # Buildah may lose the end of the output: see `Chroot`.
    pause = "sleep 1" if kind.name == "buildah" else ""
    script, argv = NOTING_SCRIPT % (f"{request.umask:04o}", pause), request.argv
    with (
        gpu_sampler(tools.processes) as gpus,
        Sampler(gpus, load=ProcessLoad(find=notes.processes)) as sampler,
    ):
        began, before, started = time.time(), os.times(), now()
        ended = tools.processes.interactive(
            [*prefixed.prefix, "sh", "-c", script, program_of(argv), *argv],
            env={**tools.environment, **prefixed.env},
            user=prefixed.user,
            cwd=prefixed.cwd,
            targets=lambda: notes.processes()[1:],
        )
        after, over = os.times(), time.time()
    if not (notes.read("started") or notes.has_no_room):
        raise StepFailed(
            f"{kind.program} did not start the program: exit status {ended}",
            hint="'build-images doctor' shows what this machine lacks",
        )
    start_s, seconds = notes.at("started") - began, notes.at("status", over) - notes.at("started")
    cpu_s = notes.cpu_s
    all_s = sum(after[2:4]) - sum(before[2:4])  # of children that ended
    return described(
        started=started,
        finished=now(),
        status=notes.status(ended),
        start_s=round(start_s, 3),
        cpu_seconds=round(cpu_s, 2),
        runtime_cpu_seconds=round(max(0.0, all_s - cpu_s), 2),
        use=_use(sampler.use, start_s, seconds, cpu_s),
    )


def _use(use: Use, start_s: float, seconds: float, cpu_s: float) -> Use:
    """Return the use by a program, which ran for part of the sampled time."""
    samples = [
        replace(sample, at_s=round(sample.at_s - start_s, 2))
        for sample in use.samples
        if 0 < sample.at_s - start_s <= seconds
    ]
    share = cpu_s / max(seconds, _TICK_S) / (os.cpu_count() or 1)
    return use_of(samples, seconds=seconds, cpu=min(1.0, share), no_gpus=use.no_gpus)
