"""This machine: prepare a run, if it has what that needs; and tell its faults from an image's.

A fault of the machine proves nothing about the image, so a run that meets one is not recorded. If a
container does not start, or no check passes in it, the same runner is given a control image whose
only program prints its version. The image is at fault only if that works.
"""

from __future__ import annotations

import dataclasses
import platform
import shutil
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from builder.artifacts import oci
from builder.build.base_store import stored_base
from builder.build.engines import ENGINES, VFS, Tools
from builder.build.engines.storage import try_storage
from builder.build.inputs import project_digests
from builder.build.mirror import (
    SECURITY_VARIABLE,
    DebianMirror,
    find_mirror,
    mirror_of,
    takes_security,
)
from builder.build.native import is_lent
from builder.build.native.tools import lacking
from builder.build.run import BuildSettings, Run, downloading
from builder.host import doctor as examination
from builder.host.doctor import lacking_for
from builder.model import FAILED, BaseImage, Outcome, PlannedImage
from builder.model.architectures import ARCHITECTURES
from builder.model.digests import digest_of_file
from builder.model.errors import StepFailed, UnfitMachine
from builder.system.home import Home
from builder.system.host_facts import host_facts
from builder.system.process import Processes
from builder.system.terminal import Progress
from builder.verify.container_output import LONGEST, readable
from builder.verify.runners.protocol import Container, Kind, readable_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class ExaminedMachine:
    """A machine as it was examined, and the versions of its programs for an engine, if known."""

    engine: str
    diagnosis: examination.Diagnosis
    versions: Mapping[str, str] = field(default_factory=dict)


def prepare(
    options: BuildSettings,
    progress: Progress,
    images: Sequence[PlannedImage],
    *,
    todo: int,
    held: ExitStack,
    bases: bool = True,
    machine: ExaminedMachine | None = None,
) -> Run:
    """Return the run for `todo` of some images, if this machine has all that it needs.

    The caller closes `held` after the run. Without `bases`, no base is made. A `machine` that is
    known is not examined. Raises `MissingPrerequisite` with everything that is missing.
    """
    processes = Processes(echo=progress.echo if options.verbose else None)
    home = Home.of_environment()
    tools = Tools(processes=processes, home=home)
    mirror, versions = None, {}
    if todo:
        options.out.mkdir(parents=True, exist_ok=True)
        home.path.mkdir(parents=True, exist_ok=True)
        local = [image for image in images if image.is_bootstrapped] if bases else []
        diagnosis = machine.diagnosis if machine else examine_machine(tools)
        jobs = min(todo, options.jobs)
        _require(options, progress, images, diagnosis, home, jobs=jobs, local=local)
        tools = held.enter_context(downloading(tools, home, images, progress, options))
        if not options.offline:
            mirror = _machine_mirror([image.base for image in local], progress)
        examined_before = dict(machine.versions) if machine else {}
        versions = examined_before or versions_of(tools, options.engine, diagnosis)
    return Run(
        settings=options,
        tools=tools,
        engine=ENGINES[options.engine](tools),
        mirror=mirror,
        progress=progress,
        host=host_facts(),
        versions=versions,
        declared=project_digests(options.project) if todo else {},
    )


def run_on_finished(project: Path, out: Path, progress: Progress) -> Run:
    """Return a run on finished images in an output folder, which builds nothing."""
    processes = Processes(echo=progress.echo if progress.level > 1 else None)
    tools = Tools(processes=processes, home=Home.of_environment())
    return Run(
        tools=tools,
        engine=ENGINES["buildah"](tools),
        settings=BuildSettings(project=project, out=out),
        progress=progress,
        host=host_facts(),
        versions=versions_of(tools, "buildah"),
    )


def _machine_mirror(bases: Sequence[BaseImage], progress: Progress) -> DebianMirror | None:
    """Return this machine's mirror, if a base needs it; say if a base gets no security updates."""
    mirror = None if all(base.mirrors for base in bases) else find_mirror()
    secured = [base for base in bases if takes_security(base)]
    if any(mirror_of(base, find_mirror).security == "" for base in secured):
        progress.say(f"{SECURITY_VARIABLE} turns security updates off")
    return mirror


def _require(
    options: BuildSettings,
    progress: Progress,
    images: Sequence[PlannedImage],
    diagnosis: examination.Diagnosis,
    home: Home,
    *,
    jobs: int,
    local: Sequence[PlannedImage],
) -> None:
    """Raise `MissingPrerequisite` with all that is missing; `local` are images on local bases."""
    host = platform.machine()
    lent = set()  # architectures whose build steps run native tools
    if options.native_tools and ENGINES[options.engine].lends:
        foreign = [image for image in images if image.cell.arch != host]
        lent = {
            image.cell.arch for image in foreign if not lacking(image.base, image.cell.arch, host)
        }
    examination.require(
        diagnosis,
        archs=sorted({image.cell.arch for image in images}),
        formats=options.formats,
        engine=options.engine,
        home=home.path,
        out=options.out,
        images=jobs,
        bases=any(
            not (options.offline and stored_base(image.base_image, store=home.bases))
            for image in local
        ),
        lent=sorted(lent),
    )
    for item in (diagnosis.items[f"native:{arch}"] for arch in sorted(lent)):
        if not item.ok:
            progress.say(f"{item.title}: {item.text} ({item.remedy})")
    if diagnosis.items["store"].data["driver"] == VFS:
        progress.say(f"the store: {diagnosis.items['store'].text}")


def examine_machine(tools: Tools) -> examination.Diagnosis:
    """Examine this machine, with its storage and its native tools."""
    return examination.examine(
        tools.processes,
        home=tools.home.path,
        search_path=tools.home.search_path(),
        try_storage=try_storage,
        is_lent=is_lent,
    )


def versions_of(
    tools: Tools, engine: str, diagnosis: examination.Diagnosis | None = None
) -> dict[str, str]:
    """Return the versions of the programs that affect the result; a diagnosis knows most."""
    names = ["mmdebstrap", "apptainer", "ch-run", "buildah"]
    known = diagnosis.items if diagnosis else {}
    versions = {
        name: str(known[name].data["version"]) if name in known else tools.version(name)
        for name in names
        if tools.has(name)
    }
    if engine == "docker":
        versions["docker"] = ENGINES["docker"](tools).version()
    if tools.has("qemu-ppc64le"):
        versions["qemu"] = tools.version("qemu-ppc64le")
    return versions


# ---- Faults of this machine ----


def machines_fault(
    kind: Kind,
    container: Container,
    arch: str,
    outcomes: Iterable[Outcome],
    error: StepFailed | None = None,
) -> str:
    """Return why this machine cannot run an image's checks; empty if it can, or one did not fail.

    `error` is set if the container did not start. Running the control image takes some seconds.
    """
    if any(outcome.outcome != FAILED for outcome in outcomes):
        return ""
    if error and is_disk_full(error):
        return f"{container.tools.home.path}: the disk is full"
    return _lacking(kind, container.tools, arch) or runs_nothing(kind, container)


def is_disk_full(error: StepFailed) -> bool:
    """Return whether a command failed because the disk is full."""
    texts = ("no space left on device", "disk quota exceeded")
    return any(text in error.output() for text in texts)


def _lacking(kind: Kind, tools: Tools, arch: str) -> str:
    diagnosis = examine_machine(tools)
    lacking = lacking_for(diagnosis, kind.name, arch)
    return "; ".join(f"{item.title}: {item.text}" for item in lacking)


def not_tried(identifier: str, untried: Mapping[str, str]) -> UnfitMachine:
    """Return the error for a verification that this machine cannot run."""
    lines = [f"{identifier}: this machine lacks what its checks need. Not run, not recorded:"]
    lines += [f"  {name}: {reason}" for name, reason in untried.items()]
    return UnfitMachine(
        "\n".join(lines), hint="'build-images doctor' shows what this machine has and lacks"
    )


# ---- Control image for containers in which all checks fail ----

# glibc's ldconfig is linked statically, so it runs without any other file. Ubuntu 22.04 and other
# C libraries have a script in its place.
_STATIC = (Path("/sbin/ldconfig.real"), Path("/sbin/ldconfig"))
_COMMAND = ("/ldconfig", "--version")
_TIMEOUT_S = 60.0
# Runtimes mount on these paths, or overwrite them.
_FOLDERS = (
    *("ch", "dev", "etc", "home", "mnt", "proc", "root", "run", "sys", "tmp", "var", "var/tmp"),
)
_FILES = ("ch/environment", "etc/group", "etc/hosts", "etc/passwd", "etc/resolv.conf")


def runs_nothing(kind: Kind, container: Container) -> str:
    """Return why a runner cannot run a program that only prints its version.

    Empty if it can, or if that cannot be determined.
    """
    programs = (path for path in _STATIC if path.is_file())
    program = next((path for path in programs if path.read_bytes().startswith(b"\x7fELF")), None)
    if program is None or platform.machine() not in ARCHITECTURES:
        return ""
    with readable_folder(container.work, "control-") as folder:
        artifact = _image(kind.format, folder, program)
        control = dataclasses.replace(
            container, artifact=artifact, directory="/", gpu=False, binds={}
        )
        try:
            with kind.open(control) as runner:
                done = getattr(runner, "inner", runner).run(_COMMAND, timeout_s=_TIMEOUT_S)
        except StepFailed as error:
            return _last(error.tail, error.message)
    lines = done.stderr.strip().splitlines()
    return _last(lines, f"exit status {done.returncode}") if done.returncode else ""


def _image(artifact_format: str, folder: Path, program: Path) -> Path:
    """Write the control image as an artifact; instead of a SIF, a folder that runs as one."""
    root = folder / "sandbox"
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    for name in _FILES:
        (root / name).touch()
    shutil.copy(program, root / _COMMAND[0][1:])
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)  # regardless of the umask, since another user runs it
    if artifact_format == "sif":
        return root
    is_tarball = artifact_format == "charliecloud"
    archive = folder / ("image.tar.gz" if is_tarball else "rootfs.tar")
    with tarfile.open(archive, "w:gz" if is_tarball else "w") as tar:
        tar.add(root, arcname=".", filter=_of_root)
    if is_tarball:
        return archive
    layout, digest = folder / "image.oci", digest_of_file(archive)
    layer = oci.LayerBlob(diff_id=digest, digest=digest, size=archive.stat().st_size)
    oci.start_layout(layout)
    archive.rename(oci.blob_path(layout, digest))
    config = {"architecture": ARCHITECTURES[platform.machine()].oci, "os": "linux"}
    rootfs = {"type": "layers", "diff_ids": [digest]}
    oci.finish_layout(layout, {**config, "rootfs": rootfs}, [layer])
    return layout


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    return member


def _last(lines: Sequence[str], otherwise: str) -> str:
    """Return the last informative line; Buildah adds the status of its own child process."""
    informative = [line for line in lines if line != "Error: exit status 1"]
    return readable((informative or [otherwise])[-1][:LONGEST])
