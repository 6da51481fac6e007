"""What NVIDIA fixes: CUDA releases, cuDNN and NCCL for them, and the errors of the run time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.places import Where


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaRelease:
    """One CUDA toolkit, as `version` names it on the axis: `12.4`.

    `update` is its newest update (`12.4.1`), `image_tag` the version as the tags of NVIDIA's images
    write it. `driver` is the least Linux driver that runs it, by minor-version compatibility from
    CUDA 11 on; `shipped_driver` came with that update. `capabilities` are those that nvcc compiles
    for, as numbers, without the variants a and f. `gcc` is the newest major version that nvcc takes
    as host compiler. `repositories` maps an architecture to the distributions for which NVIDIA has
    packages of the release, by its own names (`rhel8`); `images` maps one to the ends of the tags
    of NVIDIA's images (`ubi8`). An empty field is not known: `notes` says so.
    """

    version: str
    update: str
    driver: str
    shipped_driver: str
    architectures: tuple[str, ...]
    capabilities: tuple[str, ...]
    gcc: str
    repositories: Mapping[str, tuple[str, ...]]
    images: Mapping[str, tuple[str, ...]]
    image_tag: str
    sources: tuple[str, ...]
    notes: str
    where: Where

    @property
    def major(self) -> str:
        """`12` of 12.4."""
        return self.version.partition(".")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class CudnnRelease:
    """One cuDNN for some CUDA releases (`10.1`) or whole majors (`11`), in NVIDIA's repositories.

    `runtime` and `development` name its packages, for apt and for rpm: `packages("deb")`.
    """

    version: str
    cuda: tuple[str, ...]
    architectures: tuple[str, ...]
    runtime: Mapping[str, str]
    development: Mapping[str, str]
    sources: tuple[str, ...]
    notes: str
    where: Where


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclRelease:
    """One NCCL and the CUDA releases that its packages are built for; else as `CudnnRelease`."""

    version: str
    cuda: tuple[str, ...]
    architectures: tuple[str, ...]
    runtime: Mapping[str, str]
    development: Mapping[str, str]
    sources: tuple[str, ...]
    notes: str
    where: Where


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaError:
    """One value of cudaError_t, and what it means for whoever starts a container."""

    code: int
    name: str
    meaning: str
    source: str


_RUNTIME_TYPES = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"

# Values: driver_types.h of CUDA 12, as the API's documentation prints it.
CUDA_ERRORS: Mapping[int, CudaError] = {
    code: CudaError(code=code, name=name, meaning=meaning, source=_RUNTIME_TYPES)
    for code, name, meaning in (
        (34, "cudaErrorStubLibrary", "the libcuda.so found is the toolkit's stub, not a driver"),
        (35, "cudaErrorInsufficientDriver", "the host's driver is older than this CUDA needs"),
        (100, "cudaErrorNoDevice", "there is a driver, but it shows no GPU"),
        (209, "cudaErrorNoKernelImageForDevice", "the program holds no code for this GPU"),
        (222, "cudaErrorUnsupportedPtxVersion", "the program's PTX is newer than the driver"),
        (803, "cudaErrorSystemDriverMismatch", "the driver's library is not of its kernel module"),
        (804, "cudaErrorCompatNotSupportedOnDevice", "cuda-compat does not work on this GPU"),
    )
}
