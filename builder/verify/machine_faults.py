"""Faults of the machine, and not of the image, in runs in which nothing passed.

What a machine lacks says nothing of an image, so nothing is recorded of such a run. An image is
accused of what it did where a runner works: so where a container does not start, or nothing passes
in it, the same runner is given an image that holds a program which only ends.
"""

from __future__ import annotations

import dataclasses
import platform
import struct
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from builder.artifacts import oci
from builder.build.engines import Tools
from builder.build.packing import file_digest
from builder.host import doctor as examination
from builder.model import FAILED, Outcome
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import MissingPrerequisite, StepFailed
from builder.verify.container_output import LONGEST, readable
from builder.verify.runners.protocol import Container, Kind, readable_folder


def machines_fault(
    kind: Kind,
    container: Container,
    arch: str,
    outcomes: Iterable[Outcome],
    error: StepFailed | None = None,
) -> str:
    """Return why this machine cannot run an image's checks; empty if it can, or one was not failed.

    `error` is why the container did not start, if it did not. To find out takes some seconds.
    """
    if any(outcome.outcome != FAILED for outcome in outcomes):
        return ""
    if error and is_disk_full(error):
        return f"{container.tools.home.path}: the disk is full"
    return _lacking(kind, container.tools, arch) or runs_nothing(kind, container)


def is_disk_full(error: StepFailed) -> bool:
    """Return whether a command failed for want of room."""
    texts = ("no space left on device", "disk quota exceeded")
    return any(text in error.output() for text in texts)


def _lacking(kind: Kind, tools: Tools, arch: str) -> str:
    home = tools.home
    diagnosis = examination.examine(tools.processes, home=home.path, search_path=home.search_path())
    lacking = examination.lacking_for(diagnosis, kind.name, arch)
    return "; ".join(f"{item.title}: {item.text}" for item in lacking)


def not_tried(identifier: str, untried: Mapping[str, str]) -> MissingPrerequisite:
    """Return the error of a verification for which this machine lacks something."""
    lines = [f"{identifier}: this machine lacks what its checks need. Not tried, nor recorded:"]
    lines += [f"  {name}: {reason}" for name, reason in untried.items()]
    return MissingPrerequisite(
        "\n".join(lines), hint="'build-images doctor' shows all that this machine has"
    )


# ---- A control for containers in which all checks fail ----

PROGRAM = "/ends"
_TIMEOUT_S = 60.0
# exit(0) as machine code, by each architecture's system call: syscall(2)
_CODE = {
    "x86_64": "b83c000000 31ff 0f05",  # mov eax, 60; xor edi, edi; syscall
    "aarch64": "000080d2 a80b80d2 010000d4",  # mov x0, 0; mov x8, 93; svc 0
    "ppc64le": "01000038 00006038 02000044",  # li r0, 1; li r3, 0; sc
}
_ELF_V2 = {"ppc64le": 2}  # e_flags: the ABI
_ADDRESS, _PAGE = 0x10000000, 0x10000
# Runtimes mount on these, or write over them.
_FOLDERS = (
    *("ch", "dev", "etc", "home", "mnt", "proc", "root", "run", "sys", "tmp", "var", "var/tmp"),
)
_FILES = ("ch/environment", "etc/group", "etc/hosts", "etc/passwd", "etc/resolv.conf")


def runs_nothing(kind: Kind, container: Container) -> str:
    """Return why a runner does not run a program that only ends.

    Empty if it does, or nobody can tell.
    """
    if platform.machine() not in _CODE:
        return ""
    with readable_folder(container.work, "control-") as folder:
        control = dataclasses.replace(
            container, artifact=_image(kind.format, folder), directory="/", gpu=False, data=None
        )
        try:
            with kind.open(control) as runner:
                done = getattr(runner, "inner", runner).run([PROGRAM], timeout_s=_TIMEOUT_S)
        except StepFailed as error:
            return _last(error.tail, error.message)
    lines = done.stderr.strip().splitlines()
    return _last(lines, f"exit status {done.returncode}") if done.returncode else ""


def ending_program(arch: str) -> bytes:
    """Return a static ELF program that only ends: https://refspecs.linuxfoundation.org/elf/elf.pdf"""
    code = bytes.fromhex(_CODE[arch])
    header, table = 64, 56
    start = header + table
    size = start + len(code)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        2,  # ET_EXEC
        ARCHITECTURES[arch].elf_machine,
        1,
        *(_ADDRESS + start, header, 0, _ELF_V2.get(arch, 0)),
        *(header, table, 1, 0, 0, 0),
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, _PAGE)
    return head + segment + code


def _image(artifact_format: str, folder: Path) -> Path:
    """Write the control as an artifact; in the place of a SIF a folder, which runs as one."""
    root, machine = folder / "sandbox", platform.machine()
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    for name in _FILES:
        (root / name).touch()
    program = root / PROGRAM[1:]
    program.write_bytes(ending_program(machine))
    program.chmod(0o755)
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
    config = {"architecture": ARCHITECTURES[machine].oci, "os": "linux"}
    rootfs = {"type": "layers", "diff_ids": [digest]}
    oci.finish_layout(layout, {**config, "rootfs": rootfs}, [layer])
    return layout


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    return member


def _last(lines: Sequence[str], otherwise: str) -> str:
    """Return the last line that tells something: Buildah's ends with that of its second self."""
    telling = [line for line in lines if line != "Error: exit status 1"]
    return readable((telling or [otherwise])[-1][:LONGEST])
