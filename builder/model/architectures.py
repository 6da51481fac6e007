"""Facts about processors: an architecture's names, binaries and CPU targets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """One processor architecture under its several names.

    `elf_machine` is e_machine of its programs, which are little-endian. `triplet` names the folder
    of its libraries on Debian (https://wiki.debian.org/Multiarch/Tuples).
    """

    name: str
    debian: str
    triplet: str
    oci: str
    qemu: str
    elf_machine: int
    aliases: tuple[str, ...]


# Names: Debian, https://wiki.debian.org/SupportedArchitectures; OCI (Go's GOARCH),
# https://go.dev/doc/install/source#environment; ELF machines, the System V ABI's registry,
# https://www.sco.com/developers/gabi/latest/ch4.eheader.html.
ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(
        name="x86_64",
        debian="amd64",
        triplet="x86_64-linux-gnu",
        oci="amd64",
        qemu="qemu-x86_64",
        elf_machine=62,
        aliases=("amd64",),
    ),
    "ppc64le": Architecture(
        name="ppc64le",
        debian="ppc64el",
        triplet="powerpc64le-linux-gnu",
        oci="ppc64le",
        qemu="qemu-ppc64le",
        elf_machine=21,
        aliases=("ppc64el", "powerpc64le"),
    ),
    "aarch64": Architecture(
        name="aarch64",
        debian="arm64",
        triplet="aarch64-linux-gnu",
        oci="arm64",
        qemu="qemu-aarch64",
        elf_machine=183,
        aliases=("arm64",),
    ),
}

ARCHITECTURE_ALIASES: Mapping[str, str] = {
    alias: arch.name for arch in ARCHITECTURES.values() for alias in arch.aliases
}


def architecture(name: str) -> Architecture | None:
    """Return the architecture with this name or alias; None if the name is unknown."""
    return ARCHITECTURES.get(ARCHITECTURE_ALIASES.get(name, name))


# The processors that images can be compiled for instead of the architecture's generic one, by
# archspec's names, which hpccm takes: https://github.com/archspec/archspec-json. Those of desktop
# machines alone are left out. Each has archspec's parent target and the features that it adds. A
# test compares it with the archspec that is installed. What no compiler emits is left out
# (NOT_INSTRUCTIONS), and sse3, which the kernel calls pni.
_PARENTS_AND_FEATURES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "x86_64": {
        "x86_64_v2": ("", "cx16 lahf_lm mmx popcnt sse sse2 sse4_1 sse4_2 ssse3"),
        "x86_64_v3": ("x86_64_v2", "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
        "x86_64_v4": ("x86_64_v3", "avx512bw avx512cd avx512dq avx512f avx512vl"),
        "nehalem": ("x86_64_v2", ""),
        "westmere": ("x86_64_v2", "aes pclmulqdq"),
        "sandybridge": ("westmere", "avx"),
        "ivybridge": ("sandybridge", "f16c rdrand"),
        "haswell": ("x86_64_v3", "aes pclmulqdq rdrand"),
        "broadwell": ("haswell", "adx rdseed"),
        "mic_knl": ("broadwell", "avx512cd avx512er avx512f avx512pf"),
        "skylake_avx512": (
            "x86_64_v4",
            "adx aes clflushopt clwb pclmulqdq rdrand rdseed xsavec xsaveopt",
        ),
        "cascadelake": ("skylake_avx512", "avx512_vnni"),
        "icelake": (
            "cascadelake",
            (
                "avx512_bitalg avx512_vbmi2 avx512_vpopcntdq avx512ifma avx512vbmi gfni rdpid "
                "sha_ni vaes vpclmulqdq"
            ),
        ),
        "sapphirerapids": (
            "icelake",
            "amx_bf16 amx_int8 amx_tile avx512_bf16 cldemote movdir64b movdiri serialize waitpkg",
        ),
        "zen": (
            "x86_64_v3",
            "aes clflushopt clzero fsgsbase pclmulqdq rdseed sse4a xsavec xsaveopt",
        ),
        "zen2": ("zen", "clwb"),
        "zen3": ("zen2", "pku vaes vpclmulqdq"),
        "zen4": (
            "zen3",
            (
                "avx512_bf16 avx512_bitalg avx512_vbmi2 avx512_vnni avx512_vpopcntdq avx512bw "
                "avx512cd avx512dq avx512f avx512ifma avx512vbmi avx512vl gfni"
            ),
        ),
        "zen5": ("zen4", "avx512_vp2intersect avx_vnni movdir64b movdiri"),
    },
    "ppc64le": {
        "power8le": ("", "power8"),
        "power9le": ("power8le", "power9"),
        "power10le": ("power9le", "power10"),
    },
    "aarch64": {
        "thunderx2": ("", "aes asimd asimdrdm atomics crc32 fp pmull sha1 sha2"),
        "a64fx": ("", "asimd asimdhp asimdrdm atomics crc32 dcpop fcma fp fphp sha1 sha2 sve"),
        "cortex_a72": ("", "aes asimd crc32 fp pmull sha1 sha2"),
        "neoverse_n1": ("thunderx2", "asimddp asimdhp dcpop fphp lrcpc"),
        "neoverse_v1": (
            "neoverse_n1",
            (
                "asimdfhm bf16 dcpodp dgh dit fcma flagm i8mm ilrcpc jscvt rng sha3 sha512 sve "
                "svebf16 svei8mm uscat"
            ),
        ),
        "neoverse_n2": (
            "neoverse_n1",
            (
                "asimdfhm bf16 dcpodp fcma flagm flagm2 frint i8mm ilrcpc jscvt sb sha3 sha512 sve "
                "sve2 svebf16 svei8mm uscat"
            ),
        ),
        "neoverse_v2": ("neoverse_n2", ""),
    },
}
CPU_TARGETS: Mapping[str, tuple[str, ...]] = {
    arch: tuple(targets) for arch, targets in _PARENTS_AND_FEATURES.items()
}
_TARGETS = {
    name: about for targets in _PARENTS_AND_FEATURES.values() for name, about in targets.items()
}
NOT_INSTRUCTIONS = frozenset(["flush_l1d", "tsc_adjust", "cpuid", "evtstrm"])
# Targets that are no product, the highest first: https://gitlab.com/x86-psABIs/x86-64-ABI
_LEVELS: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("x86_64_v4", "x86_64_v3", "x86_64_v2"),
    "ppc64le": ("power10le", "power9le", "power8le"),
}
# What QEMU's user emulation has at the least of each, unless told of another processor:
# https://gitlab.com/qemu-project/qemu/-/blob/master/linux-user/ppc/target_elf.h
EMULATED: Mapping[str, frozenset[str]] = {"ppc64le": frozenset(["power8"])}
_POWER = re.compile(r"power(\d+)", re.IGNORECASE)
_FIRST_POWER = 8  # the first that ppc64le exists for: the ELF V2 ABI's hardware


def cpu_features(target: str) -> tuple[str, ...]:
    """Return the features that code for a CPU target may use, sorted; none for `generic`."""
    before, added = _TARGETS.get(target, ("", ""))
    return tuple(sorted({*(cpu_features(before) if before else ()), *added.split()}))


def power_levels(model: str) -> tuple[str, ...]:
    """Return a POWER processor's features by /proc/cpuinfo's name: `POWER9, altivec supported`.

    Empty if the name tells no level.
    """
    match = _POWER.search(model)
    levels = range(_FIRST_POWER, int(match[1]) + 1) if match and len(match[1]) < 3 else ()  # noqa: PLR2004
    return tuple(f"power{level}" for level in levels)


def level_of(arch: str, features: tuple[str, ...]) -> str:
    """Return the highest generic CPU target whose features are there; empty below the first."""
    levels = _LEVELS.get(arch, ())
    return next((level for level in levels if {*cpu_features(level)} <= {*features}), "")
