"""Whether it is the machine that runs nothing: a control for containers in which all checks fail.

An image is accused of what it did where a runner works. So where a container does not start, or
nothing passes in it, the same runner is given an image that holds a program which only ends.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import platform
import struct
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from builder import facts
from builder.artifacts import oci
from builder.model.errors import StepFailed
from builder.verify.runners import Container, Kind
from builder.verify.wording import LONGEST, readable

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
# What runtimes mount on, or write over.
_FOLDERS = (
    *("ch", "dev", "etc", "home", "mnt", "proc", "root", "run", "sys", "tmp", "var", "var/tmp"),
)
_FILES = ("ch/environment", "etc/group", "etc/hosts", "etc/passwd", "etc/resolv.conf")


def runs_nothing(kind: Kind, container: Container) -> str:
    """Why a runner does not run a program that only ends; empty if it does, or nobody can tell."""
    if platform.machine() not in _CODE:
        return ""
    with tempfile.TemporaryDirectory(dir=container.work, prefix="control-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        control = dataclasses.replace(
            container, artifact=_image(kind.format, folder), directory="/", gpu=False, data=None
        )
        try:
            with kind.open(control) as runner:
                done = getattr(runner, "inner", runner).run([PROGRAM], timeout_s=_TIMEOUT_S)
        except StepFailed as error:
            return _shown(error.tail, error.message)
    lines = done.stderr.strip().splitlines()
    return _shown(lines, f"exit status {done.returncode}") if done.returncode else ""


def ending_program(arch: str) -> bytes:
    """A static ELF program that only ends: https://refspecs.linuxfoundation.org/elf/elf.pdf"""
    code = bytes.fromhex(_CODE[arch])
    header, table = 64, 56
    start = header + table
    size = start + len(code)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        2,  # ET_EXEC
        facts.ARCHITECTURES[arch].elf_machine,
        1,
        *(_ADDRESS + start, header, 0, _ELF_V2.get(arch, 0)),
        *(header, table, 1, 0, 0, 0),
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, _PAGE)
    return head + segment + code


def _image(artifact_format: str, folder: Path) -> Path:
    """The control as an artifact of a format; in the place of a SIF a folder, which runs as one."""
    rootfs = folder / "rootfs.tar"
    _write_tree(rootfs)
    if artifact_format == "charliecloud":
        target = folder / "image.tar.gz"
        target.write_bytes(gzip.compress(rootfs.read_bytes()))
        return target
    if artifact_format == "sif":
        return _unpacked(rootfs, folder / "sandbox")
    architecture, archive = facts.ARCHITECTURES[platform.machine()].oci, folder / "image.tar"
    oci.write_archive(rootfs, archive, architecture=architecture, environment={}, name="control")
    return _unpacked(archive, folder / "image.oci")


def _write_tree(target: Path) -> None:
    program = ending_program(platform.machine())
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in _FOLDERS:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for name, mode, data in (
            *((one, 0o644, b"") for one in _FILES),
            (PROGRAM[1:], 0o755, program),
        ):
            member = tarfile.TarInfo(name)
            member.mode, member.size = mode, len(data)
            tar.addfile(member, io.BytesIO(data))


def _unpacked(archive: Path, target: Path) -> Path:
    target.mkdir()
    with tarfile.open(archive) as tar:
        # An attribute: Debian 12's Python has no argument for it, and Python 3.14 needs it.
        tar.extraction_filter = lambda member, _: member
        tar.extractall(target)  # noqa: S202 - what was written here
    return target


def _shown(lines: Sequence[str], otherwise: str) -> str:
    """The last line that tells something: Buildah's ends with the status of its second self."""
    telling = [line for line in lines if line != "Error: exit status 1"]
    return readable((telling or [otherwise])[-1][:LONGEST])
