"""What the world fixes about processors: an architecture's names, binaries and CPU targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """One processor architecture under its several names.

    `elf_machine` and `elf_data` are e_machine and EI_DATA of its programs. `triplet` names the
    folder of its libraries on Debian (https://wiki.debian.org/Multiarch/Tuples). `binfmt_magic` and
    `binfmt_mask` are what the kernel matches to hand them to QEMU, in the escapes of
    /proc/sys/fs/binfmt_misc/register.
    """

    name: str
    debian: str
    triplet: str
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
        triplet="x86_64-linux-gnu",
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
        triplet="powerpc64le-linux-gnu",
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
        triplet="aarch64-linux-gnu",
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

# The processors that images can be compiled for instead of the architecture's generic one, by
# archspec's names, which hpccm takes: https://github.com/archspec/archspec-json. Those of desktop
# machines alone are left out.
CPU_TARGETS: Mapping[str, tuple[str, ...]] = {
    "x86_64": (
        "x86_64_v2",
        "x86_64_v3",
        "x86_64_v4",
        "nehalem",
        "westmere",
        "sandybridge",
        "ivybridge",
        "haswell",
        "broadwell",
        "mic_knl",
        "skylake_avx512",
        "cascadelake",
        "icelake",
        "sapphirerapids",
        "zen",
        "zen2",
        "zen3",
        "zen4",
        "zen5",
    ),
    "ppc64le": ("power8le", "power9le", "power10le"),
    "aarch64": (
        "thunderx2",
        "a64fx",
        "cortex_a72",
        "neoverse_n1",
        "neoverse_v1",
        "neoverse_n2",
        "neoverse_v2",
    ),
}


def architecture(name: str) -> Architecture | None:
    """An architecture by any of its names; None if there is none of that name."""
    return ARCHITECTURES.get(ARCHITECTURE_ALIASES.get(name, name))


def architecture_of_target(target: str) -> str:
    """The architecture whose CPU target that is, as `uname -m` spells it; empty if of none."""
    for arch, targets in CPU_TARGETS.items():
        if target in targets:
            return arch
    return ""
