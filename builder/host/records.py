"""Records of hosts: JSON files (YAML will do), read with every fault at its place, and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder import facts
from builder.facts.runtimes import RUNTIMES
from builder.load.document import Node, parse
from builder.load.faults import Faults
from builder.load.readers import Table, list_of, mapping_of, one_of, text
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


def read_record(path: Path) -> Host:
    """The host of a record; raises `BadInput` with all that is wrong in it."""
    faults = Faults()
    node = parse(path, str(path), faults)
    host = Host() if node is None else host_of(node, faults)
    if faults.found:
        raise BadInput.of(faults.found, "nothing was checked")
    return host


def host_of(node: Node, faults: Faults) -> Host:
    """A host; whatever is wrong is noted, and the result is then not to be used."""
    table = Table(
        node,
        faults,
        required=("schema",),
        optional=(
            "name",
            "architecture",
            "kernel",
            "glibc",
            "cpu",
            "gpu",
            "mpi",
            "slurm",
            "runtimes",
            "page_size",
            "user_namespaces",
            "restricted_namespaces",
            "fuse",
            "emulators",
        ),
    )
    table.read("schema", exactly(SCHEMA), "")
    runtimes = mapping_of(_runtime, key=one_of(RUNTIMES, "container runtime"))
    return Host(
        name=table.read("name", maybe(text, ""), ""),
        architecture=table.read("architecture", maybe(_architecture, None), None),
        kernel=table.read("kernel", maybe(kernel, None), None),
        glibc=table.read("glibc", maybe(dotted, None), None),
        cpu=table.read("cpu", maybe(_cpu, HostCpu()), HostCpu()),
        gpu=table.read("gpu", maybe(_gpus, HostGpus()), HostGpus()),
        mpi=table.read("mpi", maybe(list_of(_mpi), None), None),
        slurm=table.read("slurm", maybe(_slurm, HostSlurm()), HostSlurm()),
        runtimes=table.read("runtimes", maybe(runtimes, None), None),
        page_size=table.read("page_size", maybe(page_size, None), None),
        user_namespaces=table.read("user_namespaces", maybe(truth, None), None),
        restricted_namespaces=table.read("restricted_namespaces", maybe(truth, None), None),
        fuse=table.read("fuse", maybe(truth, None), None),
        emulators=table.read("emulators", maybe(words(_architecture), None), None),
    )


def _architecture(node: Node, faults: Faults) -> str:
    """Any architecture: a host may be of one that no image is for."""
    value = text(node, faults)
    known = architecture(value)
    return known.name if known else value


def _cpu(node: Node, faults: Faults) -> HostCpu:
    """The features: as the kernel lists them, or those of a CPU target, or by a POWER's name."""
    table = Table(node, faults, required=(), optional=("model", "features", "target"))
    model = table.read("model", maybe(text, ""), "")
    found = table.read("features", maybe(words(text), None), None)
    named = table.read("target", maybe(target, ""), "")
    return HostCpu(
        model=model, features=found or cpu_features(named) or power_levels(model) or None
    )


def _gpus(node: Node, faults: Faults) -> HostGpus:
    optional = ("driver", "devices", "on_bus", "others", "compat", "toolkit", "cdi", "fault")
    table = Table(node, faults, required=(), optional=optional)
    return HostGpus(
        driver=table.read("driver", maybe(driver, None), None) or None,
        devices=table.read("devices", maybe(list_of(_gpu), None), None),
        on_bus=table.read("on_bus", maybe(count, None), None),
        others=table.read("others", maybe(words(text), None), None),
        compat=table.read("compat", maybe(words(dotted), None), None),
        toolkit=table.read("toolkit", maybe(truth, None), None),
        cdi=table.read("cdi", maybe(truth, None), None),
        fault=table.read("fault", maybe(text, ""), ""),
    )


def _gpu(node: Node, faults: Faults) -> HostGpu:
    optional = ("model", "capability", "mig", "mig_instances")
    table = Table(node, faults, required=(), optional=optional)
    return HostGpu(
        model=table.read("model", maybe(text, ""), ""),
        capability=table.read("capability", maybe(capability, None), None),
        mig=table.read("mig", maybe(truth, None), None),
        mig_instances=table.read("mig_instances", maybe(count, None), None),
    )


def _mpi(node: Node, faults: Faults) -> HostMpi:
    optional = ("version", "launcher", "libraries", "glibc", "pmix")
    table = Table(node, faults, required=("family",), optional=optional)
    return HostMpi(
        family=table.read("family", one_of(facts.MPI_FAMILIES, "MPI family"), ""),
        version=table.read("version", maybe(dotted, ""), ""),
        launcher=table.read("launcher", maybe(text, ""), ""),
        libraries=table.read("libraries", maybe(words(text), None), None),
        glibc=table.read("glibc", maybe(dotted, ""), ""),
        pmix=table.read("pmix", maybe(dotted, ""), ""),
    )


def _slurm(node: Node, faults: Faults) -> HostSlurm:
    table = Table(node, faults, required=(), optional=("version", "pmi"))
    return HostSlurm(
        version=table.read("version", maybe(dotted, ""), ""),
        pmi=table.read("pmi", maybe(words(text), None), None),
    )


def _runtime(node: Node, faults: Faults) -> HostRuntime:
    optional = ("version", "setuid", "cdi", "clone3", "profile")
    table = Table(node, faults, required=(), optional=optional)
    return HostRuntime(
        version=table.read("version", maybe(dotted, ""), ""),
        setuid=table.read("setuid", maybe(truth, None), None),
        cdi=table.read("cdi", maybe(truth, None), None),
        clone3=table.read("clone3", maybe(truth, None), None),
        profile=table.read("profile", maybe(truth, None), None),
    )


def as_record(host: Host) -> str:
    """The text of a record: what is not known is null, for whoever knows it."""
    document: dict[str, Any] = {"schema": SCHEMA, **_known(write(host))}
    if document["cpu"]["features"] is not None:
        document["cpu"]["features"] = " ".join(document["cpu"]["features"])
    for gpu in document["gpu"]["devices"] or ():
        if gpu["capability"] is not None:
            gpu["capability"] = "{}.{}".format(*divmod(gpu["capability"], 10))
    for one in (document["runtimes"] or {}).values():
        for key in [key for key, value in one.items() if value is None and key != "version"]:
            del one[key]
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _known(document: Mapping[str, object]) -> dict[str, object]:
    """An object in which unknown texts are null, for an empty text is none."""
    return {key: _plain(value) for key, value in document.items()}


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return _known(value)
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if value == "" else value


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
