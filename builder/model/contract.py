"""Requirements of an image on its host: made from the plan, kept in the image.

It is a file in the image (`IN_IMAGE`), by which every format carries it, and labels of the image
(`build-images.host.*`), which are read without unpacking it. docs/host-contract.md tells of each
field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from builder import facts
from builder.model.architectures import cpu_features

if TYPE_CHECKING:
    from builder.model import PlannedCuda, PlannedImage, PlannedMpi

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
    """Requirements of an image on its host.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteAnswer:
    """The answer of check-host for an image at a site, with the commands that run it there.

    `answer` is yes, no or cannot tell; `reasons` are rules with reason and fix, if it is not yes.
    `commands` are by the way of starting ranks (`in-container`, `hybrid`), with IMAGE for the image
    in the format of the `runtime`; `before` is needed once before them. There are none if nothing
    runs there, if only the host's MPI bound in does, or if a cluster starts the containers.
    """

    site: str
    answer: str
    reasons: tuple[tuple[str, str, str], ...] = ()
    runtime: str = ""
    before: str = ""
    commands: tuple[tuple[str, str], ...] = ()


def contract_of(image: PlannedImage) -> HostContract:
    """Return the requirements of an image on its host; the same image gives the same contract."""
    arch, system = image.cell.arch, image.system
    return HostContract(
        image=image.identifier,
        architecture=arch,
        cpu=_cpu(image.cell.cpu, system.cpu.get(arch, "") if system else ""),
        kernel=system.kernel.get(arch, "") if system else "",
        glibc=system.glibc if system else "",
        cuda=_cuda(image.cuda) if image.cuda else None,
        mpi=_mpi(image.mpi) if image.mpi else None,
    )


def _cpu(target: str, baseline: str) -> NeededCpu:
    needed = {*cpu_features(target), *cpu_features(baseline)}
    return NeededCpu(target=target, baseline=baseline, features=tuple(sorted(needed)))


def _cuda(cuda: PlannedCuda) -> NeededCuda:
    """Return the requirements of CUDA; the PTX is of the last capability, as in `cuda.gencode`."""
    return NeededCuda(
        version=cuda.version,
        update=cuda.update,
        driver=cuda.driver,
        shipped_driver=cuda.shipped_driver,
        capabilities=cuda.capabilities,
        ptx=cuda.capabilities[-1] if cuda.capabilities and cuda.has_ptx else "",
    )


def _mpi(mpi: PlannedMpi) -> NeededMpi:
    return NeededMpi(
        family=mpi.family,
        version=mpi.version,
        route=mpi.route,
        library=mpi.library,
        abi=facts.MPI_FAMILIES[mpi.family].abi,
        pmix=mpi.pmix,
    )


FILE = "files/host-contract.json"  # in the folder of a spec
IN_IMAGE = "/opt/build-images/host-contract.json"
LABEL = "build-images.host."


def as_document(contract: HostContract) -> dict[str, object]:
    """Return the contract as JSON values, without empty ones."""
    return {"schema": SCHEMA, **_without_empty(asdict(contract))}


def as_text(contract: HostContract) -> str:
    """Return the text of the file in the image."""
    return json.dumps(as_document(contract), indent=1) + "\n"


def as_labels(contract: HostContract) -> dict[str, str]:
    """Return the contract as labels, such as `build-images.host.cuda.driver`; lists as words."""
    return labels_of_document(as_document(contract))


def labels_of_document(document: Mapping[str, object]) -> dict[str, str]:
    """Return the labels of a contract that is given as JSON values."""
    return {f"{LABEL}{key}": value for key, value in _flat(document)}


def _without_empty(values: Mapping[str, object]) -> dict[str, object]:
    written = {
        key: _without_empty(value) if isinstance(value, dict) else value
        for key, value in values.items()
    }
    return {key: value for key, value in written.items() if value}


def _flat(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", text) for inner, text in _flat(value))
        else:
            yield key, " ".join(value) if isinstance(value, list | tuple) else str(value)
