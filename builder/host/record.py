"""A host as values: this machine, or one of which a record was brought.

None is "not known" wherever it stands: a rule that needs the fact then cannot tell. What is known
not to be there is empty, False or `NONE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA = "build-images/host/v1"
NONE = "none"  # of a driver: none is loaded


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCpu:
    """The processor: its `model` as the kernel names it, and its features.

    Features have the names of /proc/cpuinfo; on POWER they are levels: power8, power9.
    """

    model: str = ""
    features: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostGpu:
    """One NVIDIA GPU. `capability` is 70 for 7.0.

    `mig` says whether it is in MIG mode, and then `mig_instances` how many can be computed on.
    """

    model: str = ""
    capability: int | None = None
    mig: bool | None = None
    mig_instances: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostGpus:
    """NVIDIA's driver and GPUs.

    `driver` is the loaded kernel module's version, or `none`; `fault` what the driver's library
    says instead of answering. `on_bus` counts NVIDIA's GPUs on the PCI bus, whatever drives them;
    `others` are the makers of others there. `compat` are the CUDA releases with a cuda-compat
    package here. `toolkit` says whether NVIDIA's container toolkit is here, `cdi` whether there is
    a CDI specification of the GPUs.
    """

    driver: str | None = None
    devices: tuple[HostGpu, ...] | None = None
    on_bus: int | None = None
    others: tuple[str, ...] | None = None
    compat: tuple[str, ...] | None = None
    toolkit: bool | None = None
    cdi: bool | None = None
    fault: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMpi:
    """One MPI of the host, by its launcher.

    `libraries` are names under which its library can be bound (`libmpi.so.40`). `glibc` is the
    newest version of symbols of the C library that it and its own libraries ask for.
    """

    family: str
    version: str = ""
    launcher: str = ""
    libraries: tuple[str, ...] | None = None
    glibc: str = ""
    pmix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSlurm:
    """Slurm: `pmi` are the kinds that `srun --mpi=list` names; none where there is no srun."""

    version: str = ""
    pmi: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostRuntime:
    """A container runtime that is here.

    `setuid` is whether Apptainer's starter is installed so, `cdi` whether `ch-run` has that option,
    `clone3` whether its filter of system calls lets threads of a new glibc start, `profile` whether
    an AppArmor profile lets it make user namespaces.
    """

    version: str = ""
    setuid: bool | None = None
    cdi: bool | None = None
    clone3: bool | None = None
    profile: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """All that is known of a host. `runtimes` are those that are there, by name.

    `restricted_namespaces` is whether AppArmor lets only programs with a profile make user
    namespaces; `fuse` whether /dev/fuse is open to ordinary users; `page_size` that of memory.
    """

    name: str = ""
    architecture: str | None = None
    kernel: str | None = None
    glibc: str | None = None
    cpu: HostCpu = field(default_factory=HostCpu)
    gpu: HostGpus = field(default_factory=HostGpus)
    mpi: tuple[HostMpi, ...] | None = None
    slurm: HostSlurm = field(default_factory=HostSlurm)
    runtimes: Mapping[str, HostRuntime] | None = None
    page_size: int | None = None
    user_namespaces: bool | None = None
    restricted_namespaces: bool | None = None
    fuse: bool | None = None
    emulators: tuple[str, ...] | None = None
