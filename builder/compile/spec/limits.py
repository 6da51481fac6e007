"""Where blocks of hpccm do not work, as data: each row with its reason and source.

hpccm warns or raises for some of these, and for others it writes a download that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from builder.model import BlockUse
from builder.model.errors import Fault
from builder.model.versions import version_order

X86_64, PPC64LE, AARCH64 = "x86_64", "ppc64le", "aarch64"
DEBIAN, RED_HAT = "Debian and Ubuntu", "Red Hat's family"

Arguments = Mapping[str, object]


def _always(_: Arguments) -> bool:
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A block exists for `architectures` only, and on `family` only where one is named.

    `when` says for which arguments of the block that holds, `on` for which family if not for all.
    `not_on` is a distribution that it does not work on: hpccm takes Debian for the nearest Ubuntu.
    """

    block: str
    reason: str
    source: str
    architectures: tuple[str, ...] = (X86_64, PPC64LE, AARCH64)
    family: str = ""
    on: str = ""
    not_on: str = ""
    when: Callable[[Arguments], bool] = _always


def _newer_than(last: str) -> Callable[[Arguments], bool]:
    def is_newer(arguments: Arguments) -> bool:
        version = arguments.get("version")
        return isinstance(version, str) and version_order(version) > version_order(last)

    return is_newer


def _set(argument: str) -> Callable[[Arguments], bool]:
    return lambda arguments: bool(arguments.get(argument))


def _unset(argument: str) -> Callable[[Arguments], bool]:
    return lambda arguments: not arguments.get(argument)


_INTEL = "https://www.intel.com/content/www/us/en/developer/tools/oneapi/overview.html"
_HPCCM = "https://github.com/NVIDIA/hpc-container-maker/blob/v26.5.0/hpccm/building_blocks"

_EVERYWHERE = (
    Limit(
        block="arm_allinea_studio",
        architectures=(AARCH64,),
        reason="Arm's compilers are for Arm processors",
        source=f"{_HPCCM}/arm_allinea_studio.py",
    ),
    Limit(
        block="doca_ofed",
        architectures=(X86_64, AARCH64),
        reason="NVIDIA's DOCA repositories hold x86_64 and arm64-sbsa",
        source="https://linux.mellanox.com/public/repo/doca/",
    ),
    Limit(
        block="hpcx",
        architectures=(X86_64, AARCH64),
        when=_newer_than("2.13.1"),
        reason="HPC-X 2.14 and newer do not exist for ppc64le",
        source="https://docs.nvidia.com/hpc-sdk/archive/23.9/hpc-sdk-release-notes/index.html",
    ),
    *(
        Limit(
            block=name,
            architectures=(X86_64,),
            reason="Intel's tools are for x86_64 processors",
            source=_INTEL,
        )
        for name in ("intel_mpi", "intel_psxe", "intel_psxe_runtime", "mkl")
    ),
    Limit(
        block="julia",
        architectures=(X86_64, AARCH64),
        reason="hpccm knows no download of Julia for ppc64le",
        source=f"{_HPCCM}/julia.py",
    ),
    Limit(
        block="libsim",
        architectures=(X86_64, AARCH64),
        reason="hpccm knows no VisIt for ppc64le",
        source=f"{_HPCCM}/libsim.py",
    ),
    Limit(
        block="llvm",
        architectures=(X86_64, AARCH64),
        when=_set("upstream"),
        reason="apt.llvm.org has no packages for ppc64le",
        source="https://apt.llvm.org/",
    ),
    Limit(
        block="llvm",
        architectures=(X86_64, AARCH64),
        on=RED_HAT,
        reason="hpccm knows no paths of clang for ppc64le on Red Hat's family; use packages",
        source=f"{_HPCCM}/llvm.py",
    ),
    Limit(
        block="mvapich2_gdr",
        architectures=(X86_64, PPC64LE),
        reason="MVAPICH2-GDR's packages are for x86_64 and ppc64le",
        source="https://mvapich.cse.ohio-state.edu/downloads/",
    ),
    Limit(
        block="nccl",
        architectures=(X86_64, AARCH64),
        when=_unset("build"),
        reason="hpccm knows no packages of NCCL for ppc64le; build: true compiles it there",
        source=f"{_HPCCM}/nccl.py",
    ),
    Limit(
        block="nvhpc",
        architectures=(X86_64, AARCH64),
        when=_newer_than("24.1"),
        reason="the HPC SDK for ppc64le ended with 24.1",
        source="https://developer.nvidia.com/nvidia-hpc-sdk-releases",
    ),
    Limit(
        block="pgi",
        architectures=(X86_64, PPC64LE),
        reason="PGI's compilers were made for x86_64 and ppc64le",
        source=f"{_HPCCM}/pgi.py",
    ),
    Limit(
        block="apt_get",
        family=DEBIAN,
        reason="the distribution has no apt-get; use packages",
        source=f"{_HPCCM}/apt_get.py",
    ),
    Limit(
        block="yum",
        family=RED_HAT,
        reason="the distribution has no yum; use packages",
        source=f"{_HPCCM}/yum.py",
    ),
    Limit(
        block="ofed",
        family=RED_HAT,
        reason="it names packages (dapl, ibutils) that Debian and Ubuntu dropped; use packages "
        "with libibverbs-dev and librdmacm-dev, or rdma_core",
        source="https://tracker.debian.org/pkg/dapl",
    ),
)


_UBUNTUS = (
    *((name, _always) for name in ("doca_ofed", "mlnx_ofed", "multi_ofed")),
    *((name, _always) for name in ("nsight_compute", "nsight_systems")),
    ("llvm", _set("upstream")),
    ("nccl", _unset("build")),
)
_ON_DEBIAN = (
    *(
        Limit(
            block=name,
            not_on="debian",
            when=when,
            reason="hpccm would add a repository for Ubuntu to Debian",
            source=f"{_HPCCM}/{name}.py",
        )
        for name, when in _UBUNTUS
    ),
    *(
        Limit(
            block=name,
            not_on="debian",
            when=_set(argument),
            reason="personal package archives are for Ubuntu",
            source="https://help.launchpad.net/Packaging/PPA",
        )
        for name, argument in (
            *(("gnu", "extra_repository"), ("packages", "apt_ppas"), ("apt_get", "ppas")),
        )
    ),
    Limit(
        block="python",
        not_on="debian",
        when=_set("python2"),
        reason="Debian dropped Python 2 before Debian 12",
        source="https://tracker.debian.org/pkg/python2.7",
    ),
)
LIMITS = (*_EVERYWHERE, *_ON_DEBIAN)


def block_limits(name: str) -> tuple[str, ...] | None:
    """The architectures that a block works on whatever its arguments; None is all of them."""
    found = [
        set(one.architectures)
        for one in LIMITS
        if one.block == name and one.when is _always and not one.on
    ]
    if not found:
        return None
    return tuple(arch for arch in (X86_64, PPC64LE, AARCH64) if all(arch in some for some in found))


def limit_reason(use: BlockUse, arch: str, hpccm_distro: str = "", distribution: str = "") -> str:
    """Why a block does not work for an architecture or a distribution; empty where it does.

    The arguments are those of one cell, with their templates rendered.
    """
    return "; ".join(_reasons(use, arch, hpccm_distro, distribution))


def limit_faults(use: BlockUse, arch: str, hpccm_distro: str, distribution: str) -> list[Fault]:
    """The fault of using a block where it does not work."""
    reason = limit_reason(use, arch, hpccm_distro, distribution)
    if not reason:
        return []
    return [
        Fault(
            file=use.where.file,
            line=use.where.line,
            key=use.where.key,
            problem=f"{use.name} does not work for {arch} on this base: {reason}",
            valid="narrow the recipe's axes, or give the block a condition (when)",
        )
    ]


def family(hpccm_distro: str) -> str:
    """The packaging family of a distribution as hpccm is told it: `ubuntu24`, `rockylinux9`."""
    return DEBIAN if hpccm_distro.startswith("ubuntu") else RED_HAT


_OF_BLOCK = {one.block: [row for row in LIMITS if row.block == one.block] for one in LIMITS}


def _reasons(use: BlockUse, arch: str, hpccm_distro: str, distribution: str) -> Iterator[str]:
    here = family(hpccm_distro) if hpccm_distro else ""
    for one in _OF_BLOCK.get(use.name, ()):
        if one.on in ("", here) and one.when(use.arguments):
            elsewhere = bool(here and one.family) and one.family != here
            elsewhere = elsewhere or bool(distribution and one.not_on == distribution)
            if arch not in one.architectures:
                only = " and ".join(one.architectures)
                yield f"{one.reason} (it exists for {only} only; {one.source})"
            elif elsewhere:
                yield f"{one.reason} ({one.source})"
