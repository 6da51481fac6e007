"""The host contract as values. What is not known is empty."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA = "build-images/host-contract/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class NeededCpu:
    """The processor that an image is compiled for.

    `target` is that of its own programs, generic or a CPU target; `baseline` that of its
    distribution's packages, empty where every processor of the architecture will do. `features` are
    what both need, as /proc/cpuinfo names them; on POWER they are levels (`power9`).
    """

    target: str
    baseline: str = ""
    features: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NeededCuda:
    """The CUDA of an image: it needs NVIDIA's driver.

    `driver` is the least version that runs it, since CUDA 11 by minor-version compatibility;
    `shipped_driver` came with the toolkit, has all of its features and compiles its PTX.
    `capabilities` are the GPUs that there is code for (`70` for 7.0), `ptx` the capability of the
    PTX, which the driver compiles for newer GPUs.
    """

    version: str
    driver: str
    update: str = ""
    shipped_driver: str = ""
    capabilities: tuple[str, ...] = ()
    ptx: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NeededMpi:
    """The MPI of an image. On the route `host`, there is none in it.

    `library` is the name that programs are linked to (`libmpi.so.40`), `abi` the family whose
    binary interface it has (openmpi, mpich), `pmix` the PMIx by which it is started.
    """

    family: str
    version: str
    route: str
    library: str = ""
    abi: str = ""
    pmix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostContract:
    """What a host must bring for an image to run.

    `kernel` is the least Linux that the image's C library starts on. `glibc` is that library's
    version: an image needs none of the host; but what is bound in from the host (an MPI) runs on
    the image's, and must not need a newer one.
    """

    image: str
    architecture: str
    cpu: NeededCpu
    kernel: str = ""
    glibc: str = ""
    cuda: NeededCuda | None = None
    mpi: NeededMpi | None = None
