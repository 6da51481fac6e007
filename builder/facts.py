"""What the world fixes, as data, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """One processor architecture under its several names.

    `elf_machine` and `elf_data` are e_machine and EI_DATA of its programs. `binfmt_magic` and
    `binfmt_mask` are what the kernel matches to hand them to QEMU, in the escapes of
    /proc/sys/fs/binfmt_misc/register.
    """

    name: str
    debian: str
    oci: str
    qemu: str
    elf_machine: int
    elf_data: int
    aliases: tuple[str, ...]
    binfmt_magic: str
    binfmt_mask: str


# Names: Debian, https://wiki.debian.org/SupportedArchitectures; OCI (Go's GOARCH),
# https://go.dev/doc/install/source#environment; ELF machines, the System V ABI's registry,
# https://www.sco.com/developers/gabi/latest/ch4.eheader.html; magic and mask, QEMU's
# scripts/qemu-binfmt-conf.sh.
_MASK_LE = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(
        name="x86_64",
        debian="amd64",
        oci="amd64",
        qemu="qemu-x86_64",
        elf_machine=62,
        elf_data=1,
        aliases=("amd64",),
        binfmt_magic=r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00",
        binfmt_mask=r"\xff\xff\xff\xff\xff\xfe\xfe\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff",
    ),
    "ppc64le": Architecture(
        name="ppc64le",
        debian="ppc64el",
        oci="ppc64le",
        qemu="qemu-ppc64le",
        elf_machine=21,
        elf_data=1,
        aliases=("ppc64el", "powerpc64le"),
        binfmt_magic=r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x15\x00",
        binfmt_mask=r"\xff\xff\xff\xff\xff\xff\xff\xfc\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\x00",
    ),
    "aarch64": Architecture(
        name="aarch64",
        debian="arm64",
        oci="arm64",
        qemu="qemu-aarch64",
        elf_machine=183,
        elf_data=1,
        aliases=("arm64",),
        binfmt_magic=r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
        binfmt_mask=_MASK_LE,
    ),
}

ARCHITECTURE_ALIASES: Mapping[str, str] = {
    alias: arch.name for arch in ARCHITECTURES.values() for alias in arch.aliases
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MpiFamily:
    """An MPI implementation: how its launcher starts ranks on one node, and its library.

    `launch` is a command prefix with `{ranks}` in it that works in a container, as root or not,
    on fewer cores than ranks. `library` is how MPI_Get_library_version names a `{version}`, as
    the checks shorten it.
    """

    name: str
    title: str
    launch: str
    library: str
    sonames: tuple[str, ...]


# Launchers: mpirun(1) of Open MPI 4.1 and 5.0 (--oversubscribe is the 4.x spelling, still taken by
# 5.0), mpiexec(1) of MPICH's Hydra. Library names: Open MPI's VERSION files, MPICH ABI
# compatibility initiative, https://www.mpich.org/abi/; Debian names MPICH's libmpich.so.12.
MPI_FAMILIES: Mapping[str, MpiFamily] = {
    "openmpi": MpiFamily(
        name="openmpi",
        title="Open MPI",
        launch="mpirun --allow-run-as-root --oversubscribe -n {ranks}",
        library="Open MPI v{version}",
        sonames=("libmpi.so.40",),
    ),
    "mpich": MpiFamily(
        name="mpich",
        title="MPICH",
        launch="mpiexec -n {ranks}",
        library="MPICH {version}",
        sonames=("libmpich.so.12", "libmpi.so.12"),
    ),
}


def architecture(name: str) -> Architecture | None:
    """An architecture by any of its names; None if there is none of that name."""
    return ARCHITECTURES.get(ARCHITECTURE_ALIASES.get(name, name))
