"""Facts about the world, as data, each with its source.

Tables are rows of data/*.yaml. A project may add to those of CUDA, cuDNN and NCCL releases, MPI
series and distributions: builder.load.facts reads them. The others are read here, by
builder.facts.tables. Architectures are in builder.model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

from builder.facts.cuda import (
    CUDNN,
    DEB,
    HOST,
    IMAGE,
    NCCL,
    PACKAGINGS,
    RPM,
    START,
    UNCLEAR,
    WHEEL,
    CudaError,
    CudaRelease,
    LibraryRelease,
    SdkRelease,
    cuda_errors,
)
from builder.facts.mpi import MPI_FAMILIES, MpiFamily, MpiRelease
from builder.facts.software import SystemRelease


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
        """Return the CUDA releases that exist for an architecture and compile for a capability."""
        return tuple(
            version
            for version, release in self.cuda.items()
            if (not arch or arch in release.architectures)
            and (not capability or capability in release.capabilities)
        )

    def library(self, name: str, *, cuda: str, packaging: str, arch: str) -> LibraryRelease | None:
        """Return the newest `cudnn` or `nccl` packaged for a CUDA release and an architecture."""
        fitting = (
            release
            for release in {CUDNN: self.cudnn, NCCL: self.nccl}[name]
            if release.pairs_with(cuda) and arch in release.packagings.get(packaging, ())
        )
        return max(fitting, key=lambda release: Version(release.version), default=None)

    def mpi_series(self, family: str, version: str) -> MpiRelease | None:
        """Return the series that a version (`4.1.4`) of a family belongs to, if it is known."""
        for release in self.mpi:
            if release.family == family and f"{version}.".startswith(f"{release.series}."):
                return release
        return None

    def sdk(self, version: str) -> SdkRelease | None:
        """Return a release of the HPC SDK, if it is known."""
        return next((release for release in self.sdks if release.version == version), None)

    def system(self, distribution: str, version: str) -> SystemRelease | None:
        """Return a distribution's release, if it is known."""
        for system in self.systems:
            if (system.distribution, system.version) == (distribution, version):
                return system
        return None


NO_FACTS = Facts(cuda={}, cudnn=(), nccl=(), mpi=())
