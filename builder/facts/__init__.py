"""What the world fixes, as data, each with its source.

GPUs, runtimes, MPI families and CUDA errors are constants here; architectures are in
builder.model. CUDA, cuDNN and NCCL releases, MPI series and distributions are rows of data/*.yaml,
which a project may add to: builder.load.facts reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.facts.cuda import (
    CUDNN,
    DEB,
    NCCL,
    PACKAGINGS,
    RPM,
    CudaRelease,
    LibraryRelease,
    SdkRelease,
)
from builder.facts.cuda_errors import (
    CUDA_ERRORS,
    HOST,
    IMAGE,
    START,
    UNCLEAR,
    CudaError,
)
from builder.facts.mpi import MPI_FAMILIES, MpiFamily, MpiRelease
from builder.facts.runtimes import SystemRelease

__all__ = [
    "CUDA_ERRORS",
    "CUDNN",
    "DEB",
    "HOST",
    "IMAGE",
    "MPI_FAMILIES",
    "NCCL",
    "NO_FACTS",
    "PACKAGINGS",
    "RPM",
    "START",
    "UNCLEAR",
    "CudaError",
    "CudaRelease",
    "Facts",
    "LibraryRelease",
    "MpiFamily",
    "MpiRelease",
    "SdkRelease",
    "SystemRelease",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Every table of releases. `cuda` is by version, the oldest first; so are the others."""

    cuda: Mapping[str, CudaRelease]
    cudnn: tuple[LibraryRelease, ...]
    nccl: tuple[LibraryRelease, ...]
    mpi: tuple[MpiRelease, ...]
    systems: tuple[SystemRelease, ...] = ()
    sdks: tuple[SdkRelease, ...] = ()

    def cuda_for(self, arch: str = "", capability: str = "") -> tuple[str, ...]:
        """The CUDA releases that exist for an architecture and compile for a capability."""
        return tuple(
            version
            for version, one in self.cuda.items()
            if (not arch or arch in one.architectures)
            and (not capability or capability in one.capabilities)
        )

    def library(self, name: str, *, cuda: str, packaging: str, arch: str) -> LibraryRelease | None:
        """The newest `cudnn` or `nccl` for a CUDA release that has packages for an architecture."""
        fitting = (
            one
            for one in {CUDNN: self.cudnn, NCCL: self.nccl}[name]
            if one.pairs_with(cuda) and arch in one.packagings.get(packaging, ())
        )
        return max(fitting, key=lambda one: _numbers(one.version), default=None)

    def mpi_series(self, family: str, version: str) -> MpiRelease | None:
        """The series that a version (`4.1.4`) of a family belongs to; None if it is not known."""
        for one in self.mpi:
            if one.family == family and f"{version}.".startswith(f"{one.series}."):
                return one
        return None

    def sdk(self, version: str) -> SdkRelease | None:
        """A release of the HPC SDK; None if it is not known."""
        return next((one for one in self.sdks if one.version == version), None)

    def system(self, distribution: str, version: str) -> SystemRelease | None:
        """A distribution's release; None if it is not known."""
        for one in self.systems:
            if (one.distribution, one.version) == (distribution, version):
                return one
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in version.split("."))


NO_FACTS = Facts(cuda={}, cudnn=(), nccl=(), mpi=())
