"""From a planned image to its host contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import facts
from builder.facts.processors import cpu_features
from builder.model.contract.values import HostContract, NeededCpu, NeededCuda, NeededMpi

if TYPE_CHECKING:
    from builder.model import PlannedCuda, PlannedImage, PlannedMpi


def contract_of(image: PlannedImage) -> HostContract:
    """What a host must bring for an image; the same image gives the same contract."""
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
    """The PTX is of the last capability, as `cuda.gencode` in recipes has it."""
    return NeededCuda(
        version=cuda.version,
        update=cuda.update,
        driver=cuda.driver,
        shipped_driver=cuda.shipped_driver,
        capabilities=cuda.capabilities,
        ptx=cuda.capabilities[-1] if cuda.capabilities else "",
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
