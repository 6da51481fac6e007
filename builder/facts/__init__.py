"""What the world fixes, as data, each with its source.

Architectures, MPI families and CUDA errors are constants here. CUDA, cuDNN and NCCL releases and
MPI series are rows of data/*.yaml, which a project may add to: builder.load.facts reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.facts.architectures import (
    ARCHITECTURE_ALIASES,
    ARCHITECTURES,
    CPU_TARGETS,
    Architecture,
    architecture,
    architecture_of_target,
)
from builder.facts.cuda import CUDA_ERRORS, CudaError, CudaRelease, CudnnRelease, NcclRelease
from builder.facts.mpi import MPI_FAMILIES, MpiFamily, MpiRelease

__all__ = [
    "ARCHITECTURES",
    "ARCHITECTURE_ALIASES",
    "CPU_TARGETS",
    "CUDA_ERRORS",
    "MPI_FAMILIES",
    "NO_FACTS",
    "Architecture",
    "CudaError",
    "CudaRelease",
    "CudnnRelease",
    "Facts",
    "MpiFamily",
    "MpiRelease",
    "NcclRelease",
    "architecture",
    "architecture_of_target",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Every table of releases. `cuda` is by version, the oldest first; so are the others."""

    cuda: Mapping[str, CudaRelease]
    cudnn: tuple[CudnnRelease, ...]
    nccl: tuple[NcclRelease, ...]
    mpi: tuple[MpiRelease, ...]


NO_FACTS = Facts(cuda={}, cudnn=(), nccl=(), mpi=())
