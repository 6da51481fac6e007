"""A host as values, and its record: JSON (YAML will do) that is read with every fault at its place.

None means "not known" everywhere: a rule that needs the fact cannot answer then. What is known not
to exist is empty, False or `NONE`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from builder import facts
from builder.facts.runtimes import RUNTIMES
from builder.load.document import Node, parse
from builder.load.faults import Faults
from builder.load.readers import Reader, Table, list_of, mapping_of, one_of, text
from builder.load.record_readers import (
    capability,
    count,
    dotted,
    driver,
    exactly,
    kernel,
    maybe,
    page_size,
    target,
    truth,
    words,
)
from builder.model.architectures import architecture, cpu_features, power_levels
from builder.model.errors import BadInput
from builder.model.records import write

T = TypeVar("T")
SCHEMA = "build-images/host/v1"
NONE = "none"  # of a driver: none is loaded
_ABSENT: object = ""  # the value of a required key that is missing; nobody sees it


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


def fields_of(
    kind: Callable[..., T], readers: Mapping[str, Reader[object]], required: Sequence[str] = ()
) -> Reader[T]:
    """Return a reader of a mapping as a dataclass: keys are fields, absent ones have the default.

    `schema`, which names the kind of file, is no field. A result with faults is not to be used.
    """
    optional = [key for key in readers if key not in required]

    def read(node: Node, faults: Faults) -> T:
        table = Table(node, faults, required=required, optional=optional)
        values = {
            key: table.read(key, reader, _ABSENT if key in required else None)
            for key, reader in readers.items()
        }
        values.pop("schema", None)
        return kind(**{key: value for key, value in values.items() if value is not None})

    return read


def _record(kind: Callable[..., T], **readers: Reader[object]) -> Reader[T]:
    """Return a reader of a mapping whose values may be null, which is not known."""
    return fields_of(kind, {key: maybe(reader, None) for key, reader in readers.items()})


def _architecture(node: Node, faults: Faults) -> str:
    """Read any architecture: a host may have one that no image is for."""
    value = text(node, faults)
    known = architecture(value)
    return known.name if known else value


def _host_cpu(
    model: str = "", features: tuple[str, ...] | None = None, target: str = ""
) -> HostCpu:
    """Return a processor: with the kernel's features, or a CPU target's, or by a POWER's name."""
    known = features or cpu_features(target) or power_levels(model) or None
    return HostCpu(model=model, features=known)


_cpu = _record(_host_cpu, model=text, features=words(text), target=target)
_gpu = _record(HostGpu, model=text, capability=capability, mig=truth, mig_instances=count)
_gpus = _record(
    HostGpus,
    driver=driver,
    devices=list_of(_gpu),
    on_bus=count,
    others=words(text),
    compat=words(dotted),
    toolkit=truth,
    cdi=truth,
    fault=text,
)
_mpi = fields_of(
    HostMpi,
    {
        "family": one_of(facts.MPI_FAMILIES, "MPI family"),
        "version": maybe(dotted, None),
        "launcher": maybe(text, None),
        "libraries": maybe(words(text), None),
        "glibc": maybe(dotted, None),
        "pmix": maybe(dotted, None),
    },
    required=("family",),
)
_slurm = _record(HostSlurm, version=dotted, pmi=words(text))
_runtime = _record(
    HostRuntime, version=dotted, setuid=truth, cdi=truth, clone3=truth, profile=truth
)
_host = fields_of(
    Host,
    {
        "schema": exactly(SCHEMA),
        **{
            key: maybe(reader, None)
            for key, reader in {
                "name": text,
                "architecture": _architecture,
                "kernel": kernel,
                "glibc": dotted,
                "cpu": _cpu,
                "gpu": _gpus,
                "mpi": list_of(_mpi),
                "slurm": _slurm,
                "runtimes": mapping_of(_runtime, key=one_of(RUNTIMES, "container runtime")),
                "page_size": page_size,
                "user_namespaces": truth,
                "restricted_namespaces": truth,
                "fuse": truth,
                "emulators": words(_architecture),
            }.items()
        },
    },
    required=("schema",),
)


def host_of(node: Node, faults: Faults) -> Host:
    """Return a host; faults are noted, and the result is then not to be used."""
    return _host(node, faults)


def read_record(path: Path) -> Host:
    """Return the host of a record; raises `BadInput` with all its faults."""
    faults = Faults()
    node = parse(path, str(path), faults)
    host = Host() if node is None else host_of(node, faults)
    if faults.found:
        raise BadInput.of(faults.found, "nothing was checked")
    return host


def as_record(host: Host) -> str:
    """Return the text of a record: what is not known is null, for whoever knows it."""
    document = write(host)
    document["cpu"] = {**write(host.cpu), "features": _words(host.cpu.features)}
    devices = [
        {
            **write(gpu),
            "capability": None if gpu.capability is None else dotted_capability(gpu.capability),
        }
        for gpu in host.gpu.devices or ()
    ]
    document["gpu"] = {**write(host.gpu), "devices": None if host.gpu.devices is None else devices}
    runtimes = {
        name: {"version": known.pop("version"), **{k: v for k, v in known.items() if v is not None}}
        for name, runtime in (host.runtimes or {}).items()
        if (known := write(runtime))
    }
    document["runtimes"] = None if host.runtimes is None else runtimes
    plain = _with_nulls({"schema": SCHEMA, **document})
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"


def dotted_capability(number: int) -> str:
    """Return a compute capability as NVIDIA lists it: 7.0 of 70."""
    return "{}.{}".format(*divmod(number, 10))


def _words(texts: Sequence[str] | None) -> str | None:
    return None if texts is None else " ".join(texts)


def _with_nulls(value: object) -> object:
    """Return JSON in which unknown texts are null."""
    if isinstance(value, dict):
        return {key: _with_nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_nulls(inner) for inner in value]
    return None if value == "" else value
