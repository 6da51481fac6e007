"""Host contracts and recorded hosts, for tests that take one and change one thing in it.

The records have the form of `check-host --record`, and are written after what the centres publish
of their machines: nobody was on one.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from samples import ROOT

from builder.facts import Facts
from builder.host.records import Host, HostCpu, HostGpu, HostGpus, read_record
from builder.load.document import Faults
from builder.load.facts import read_facts
from builder.model import Layers
from builder.model.architectures import cpu_features
from builder.model.contract import HostContract, NeededCpu, NeededCuda, NeededMpi

RECORDS = ROOT / "tests/data/hosts"
OPENMPI = NeededMpi(
    family="openmpi",
    version="4.1.4",
    route="package",
    library="libmpi.so.40",
    abi="openmpi",
    pmix="4.2",
)
OPENMPI_5 = dataclasses.replace(OPENMPI, version="5.0.7", pmix="5.0")
MPICH = NeededMpi(
    family="mpich", version="4.1.1", route="package", library="libmpi.so.12", abi="mpich"
)
DEBIANS_MPICH = dataclasses.replace(MPICH, version="4.0.2", library="libmpich.so.12")
CRAY_MPICH = dataclasses.replace(MPICH, family="craympich", version="8.1", route="host")
INTEL_MPI = dataclasses.replace(MPICH, family="intelmpi", version="2021.13", route="host")


@functools.cache
def known() -> Facts:
    faults = Faults()
    found = read_facts(Layers(each=()), faults)
    assert not faults.found
    return found


@functools.cache
def recorded(name: str) -> Host:
    return read_record(RECORDS / f"{name}.json")


def host(record: str, **changes: Any) -> Host:
    return dataclasses.replace(recorded(record), **changes)


def with_gpu(name: str, **changes: Any) -> Host:
    """A recorded host with something else in its GPUs."""
    found = recorded(name)
    return dataclasses.replace(found, gpu=dataclasses.replace(found.gpu, **changes))


def gpu(model: str, capability: int | None, *, mig: bool | None = False, **more: Any) -> HostGpu:
    return HostGpu(model=model, capability=capability, mig=mig, **more)


def cpu(model: str, target: str) -> HostCpu:
    return HostCpu(model=model, features=cpu_features(target))


def needed_cpu(target: str = "generic", baseline: str = "") -> NeededCpu:
    features = {*cpu_features(target), *cpu_features(baseline)}
    return NeededCpu(target=target, baseline=baseline, features=tuple(sorted(features)))


def contract(arch: str = "x86_64", **changes: Any) -> HostContract:
    kernels = {"x86_64": "3.2.0", "ppc64le": "3.10.0", "aarch64": "3.7.0"}
    made = HostContract(
        image=f"sample-1.0-debian12-{arch}",
        architecture=arch,
        cpu=needed_cpu(baseline="power8le" if arch == "ppc64le" else ""),
        kernel=kernels[arch],
        glibc="2.36",
    )
    return dataclasses.replace(made, **changes)


def cuda(version: str, *capabilities: str) -> NeededCuda:
    """What an image with a CUDA release needs, as plans have it."""
    release = known().cuda[version]
    codes = capabilities or release.capabilities
    return NeededCuda(
        version=version,
        update=release.update,
        driver=release.driver,
        shipped_driver=release.shipped_driver,
        capabilities=codes,
        ptx=codes[-1],
    )


NO_GPUS = HostGpus(driver="none", devices=(), on_bus=0, compat=(), toolkit=False, cdi=False)

MPIS = {
    "openmpi": OPENMPI,
    "openmpi-5": OPENMPI_5,
    "mpich": MPICH,
    "debians-mpich": DEBIANS_MPICH,
    "intel-mpi": INTEL_MPI,
}


def contract_like(arch: str = "x86_64", **changes: Any) -> HostContract:
    """A contract by the names of samples, as tests/data/check-host.yaml has them."""
    if "cpu" in changes:
        changes["cpu"] = needed_cpu(**changes["cpu"])
    if "cuda" in changes:
        version, codes, more = _sample(changes["cuda"], "version", "capabilities")
        if codes == []:  # the image does not say them
            more["capabilities"] = ()
        changes["cuda"] = dataclasses.replace(cuda(version, *codes or ()), **more)
    if "mpi" in changes:
        name, _, more = _sample(changes["mpi"], "sample")
        changes["mpi"] = dataclasses.replace(MPIS[name], **more)
    return contract(arch, **changes)


def _sample(value: Any, key: str, other: str = "") -> tuple[str, Any, dict[str, Any]]:
    """A sample's name, the value of another key, and what else differs from the sample."""
    more = dict(value) if isinstance(value, dict) else {key: value}
    return more.pop(key), more.pop(other, None), more
