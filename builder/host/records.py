"""Facts about a host, and their record in JSON or YAML; all faults are reported with their place.

The annotation of a field holds the reader for its value in a record, where it may be null, and the
description of the value.

None always means "not known": a rule that needs the fact cannot answer then. A fact that is known
to be absent is empty, False or `NONE`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, TypeVar, get_type_hints

from builder import facts
from builder.facts.software import RUNTIMES
from builder.load import record_readers as read
from builder.load.document import Faults, Node, parse
from builder.load.readers import Reader, described, list_of, mapping_of, one_of, record, text, words
from builder.load.record_readers import maybe, truth
from builder.load.site import HOSTS, layers_of
from builder.model.architectures import architecture, cpu_features, power_levels
from builder.model.errors import BadInput
from builder.model.records import write

T = TypeVar("T")
SCHEMA = "build-images/host/v1"
_ENDINGS = {".json", ".yaml", ".yml"}  # of records in a folder; editors leave others
NONE = "none"  # as a driver version: no driver is loaded


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCpu:
    """The processor: its `model` as named by the kernel, and its features.

    Features are named as in /proc/cpuinfo; on POWER they are levels: power8, power9.
    """

    model: str = ""
    features: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostGpu:
    """One NVIDIA GPU. `capability` is 70 for 7.0."""

    model: Annotated[str, text, "its name"] = ""
    capability: Annotated[int | None, read.capability, "its compute capability, such as 7.0"] = None
    mig: Annotated[bool | None, truth, "true in MIG mode"] = None
    mig_instances: Annotated[
        int | None, read.count, "the number of its compute instances in MIG mode"
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostGpus:
    """NVIDIA's driver and GPUs. `on_bus` counts the GPUs on the PCI bus, whatever their driver."""

    driver: Annotated[str | None, read.driver, "the version of NVIDIA's loaded driver, or none"] = (
        None
    )
    devices: Annotated[tuple[HostGpu, ...] | None, list_of(_gpu), "its NVIDIA GPUs"] = None
    on_bus: Annotated[int | None, read.count, "the number of NVIDIA GPUs on the PCI bus"] = None
    others: Annotated[tuple[str, ...] | None, words(text), "the makers of other GPUs"] = None
    compat: Annotated[
        tuple[str, ...] | None,
        words(read.dotted),
        "the CUDA releases whose cuda-compat is installed",
    ] = None
    toolkit: Annotated[bool | None, truth, "true if NVIDIA's container toolkit is installed"] = None
    cdi: Annotated[bool | None, truth, "true if a CDI specification has the GPUs"] = None
    fault: Annotated[str, text, "the error of the driver's library"] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMpi:
    """One MPI of the host, by its launcher; `libraries` are the names that can be bound."""

    family: Annotated[str, one_of(facts.MPI_FAMILIES, "MPI family"), "the family of this MPI"]
    version: Annotated[str, read.dotted, "its version"] = ""
    launcher: Annotated[str, text, "the path of its launcher"] = ""
    libraries: Annotated[
        tuple[str, ...] | None, words(text), "the names of its library, such as libmpi.so.40"
    ] = None
    glibc: Annotated[str, read.dotted, "the newest glibc that its libraries need"] = ""
    pmix: Annotated[str, read.dotted, "the version of its PMIx"] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSlurm:
    """Slurm; `pmi` are the kinds in the output of `srun --mpi=list`, empty without srun."""

    version: Annotated[str, read.dotted, "its version"] = ""
    pmi: Annotated[tuple[str, ...] | None, words(text), "the kinds that srun --mpi=list prints"] = (
        None
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class HostRuntime:
    """An installed container runtime. `clone3` is decided by its system call filter."""

    version: Annotated[str, read.dotted, "its version"] = ""
    setuid: Annotated[bool | None, truth, "true if Apptainer's starter is setuid root"] = None
    cdi: Annotated[bool | None, truth, "true if ch-run has the option --cdi"] = None
    clone3: Annotated[bool | None, truth, "true if threads of a new glibc can start"] = None
    profile: Annotated[
        bool | None, truth, "true if AppArmor allows it to create user namespaces"
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """All known facts about a host."""

    name: Annotated[str, text, "the host's name"] = ""
    architecture: Annotated[str | None, _architecture, "as uname -m prints it"] = None
    kernel: Annotated[str | None, read.kernel, "as uname -r prints it"] = None
    glibc: Annotated[str | None, read.dotted, "the version of its glibc"] = None
    cpu: Annotated[HostCpu, _cpu, "its processor"] = field(default_factory=HostCpu)
    gpu: Annotated[HostGpus, _gpus, "its driver and GPUs"] = field(default_factory=HostGpus)
    mpi: Annotated[tuple[HostMpi, ...] | None, list_of(_mpi), "its MPIs"] = None
    slurm: Annotated[HostSlurm, _slurm, "its Slurm"] = field(default_factory=HostSlurm)
    runtimes: Annotated[
        Mapping[str, HostRuntime] | None, _runtimes, "its container runtimes, by name"
    ] = None
    page_size: Annotated[int | None, read.page_size, "the size of memory pages, in bytes"] = None
    user_namespaces: Annotated[
        bool | None, truth, "true if ordinary users can create user namespaces"
    ] = None
    restricted_namespaces: Annotated[
        bool | None, truth, "true if AppArmor allows them to some programs alone"
    ] = None
    fuse: Annotated[bool | None, truth, "true if ordinary users can open /dev/fuse"] = None
    emulators: Annotated[
        tuple[str, ...] | None, words(_architecture), "the architectures that QEMU emulates here"
    ] = None


def _record(kind: type[T], **required: Reader[object]) -> Reader[T]:
    """Return a reader of a mapping as a dataclass. Absent and null keys have the default value.

    `required` are readers for keys that are not fields. A result with faults must not be used.
    """
    hints = get_type_hints(kind, include_extras=True)
    optional: dict[str, Reader[object]] = {}
    for part in fields(kind):  # type: ignore[arg-type]  # of a dataclass
        reader, words = hints[part.name].__metadata__
        if part.default is MISSING and part.default_factory is MISSING:
            required[part.name] = described(words, reader)
        else:
            optional[part.name] = described(words, maybe(reader))

    def known(**values: object) -> T:
        return kind(**{key: value for key, value in values.items() if value is not None})

    return record(known, required, optional, fields={"schema": ""})


def _architecture(node: Node, faults: Faults) -> str:
    """Read any architecture: a host may have one without images."""
    value = text(node, faults)
    known = architecture(value)
    return known.name if known else value


def _host_cpu(
    model: str | None = None, features: tuple[str, ...] | None = None, target: str | None = None
) -> HostCpu:
    """Return a processor; its features come from the kernel, a CPU target or a POWER's name."""
    known = features or cpu_features(target or "") or power_levels(model or "") or None
    return HostCpu(model=model or "", features=known)


_cpu = record(
    _host_cpu,
    {},
    {
        "model": described("its name in /proc/cpuinfo", maybe(text)),
        "features": described("as in /proc/cpuinfo; on POWER its levels", maybe(words(text))),
        "target": described("its CPU target, in place of features", maybe(read.target)),
    },
)
_gpu = _record(HostGpu)
_gpus = _record(HostGpus)
_mpi = _record(HostMpi)
_slurm = _record(HostSlurm)
_runtimes = mapping_of(_record(HostRuntime), key=one_of(RUNTIMES, "container runtime"))
# A result with faults must not be used.
host_of = _record(Host, schema=read.exactly(SCHEMA))


def read_record(path: Path) -> Host:
    """Return the host in a record; raises `BadInput` with all faults of the record."""
    faults = Faults()
    node = parse(path, str(path), faults)
    host = Host() if node is None else host_of(node, faults)
    if faults.found:
        raise BadInput.of(faults.found, "nothing was checked")
    return host


def site_hosts(root: Path, files: Sequence[Path]) -> list[Host]:
    """Return the hosts of records, by name: of `files`, else of `hosts/` in a project's layers.

    A record without a name has that of its file. Raises `BadInput` for two hosts of one name.
    """
    folders = [] if files else [layer.folder / HOSTS for layer in layers_of(root).each]
    records = (path for folder in folders for path in folder.glob("*") if path.suffix in _ENDINGS)
    hosts: dict[str, Host] = {}
    for path in files or {path.name: path for path in records}.values():
        host = read_record(path)
        name = host.name or path.stem
        if name in hosts:
            raise BadInput(f"{path}: the host {name} has two records")
        hosts[name] = replace(host, name=name)
    return [hosts[name] for name in sorted(hosts)]


def as_record(host: Host) -> str:
    """Return the text of a record; unknown facts are null, so that a user can add them."""
    features, devices, runtimes = host.cpu.features, host.gpu.devices, host.runtimes
    document = {
        "schema": SCHEMA,
        **write(host),
        "cpu": {**write(host.cpu), "features": None if features is None else " ".join(features)},
        "gpu": {
            **write(host.gpu),
            "devices": None if devices is None else [*map(_device, devices)],
        },
        "runtimes": None
        if runtimes is None
        else {name: _known_of(runtime) for name, runtime in runtimes.items()},
    }
    return json.dumps(_with_nulls(document), indent=1, ensure_ascii=False) + "\n"


def _device(gpu: HostGpu) -> dict[str, object]:
    capability = None if gpu.capability is None else dotted_capability(gpu.capability)
    return {**write(gpu), "capability": capability}


def _known_of(runtime: HostRuntime) -> dict[str, object]:
    return {key: value for key, value in write(runtime).items() if value is not None}


def dotted_capability(number: int) -> str:
    """Return a compute capability in NVIDIA's notation: 7.0 for 70."""
    return "{}.{}".format(*divmod(number, 10))


def _with_nulls(value: object) -> object:
    """Return a JSON value in which empty texts are null."""
    if isinstance(value, dict):
        return {key: _with_nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_nulls(inner) for inner in value]
    return None if value == "" else value
