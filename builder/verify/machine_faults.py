"""Detect faults of the machine after runs in which no check passed.

A fault of the machine proves nothing about the image, so such a run is not recorded. If a container
does not start, or no check passes in it, the same runner is given a control image whose only
program prints its version. The image is at fault only if that works.
"""

from __future__ import annotations

import dataclasses
import platform
import shutil
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from builder.artifacts import oci
from builder.build.engines import Tools
from builder.build.packing import file_digest
from builder.host.doctor import lacking_for
from builder.model import FAILED, Outcome
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import StepFailed, UnfitMachine
from builder.verify.container_output import LONGEST, readable
from builder.verify.preparation import examined
from builder.verify.runners.protocol import Container, Kind, readable_folder


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
    diagnosis = examined(tools)
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
            container, artifact=artifact, directory="/", gpu=False, data=None
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
    layout, digest = folder / "image.oci", file_digest(archive)
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
