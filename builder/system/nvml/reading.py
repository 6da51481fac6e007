"""A whole reading: the host, each GPU, and the ways between them.

`python -m builder.system.nvml.reading LIBRARY` prints one as JSON; `ask` starts it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pynvml

from builder.system.nvml.gpu import read_gpu
from builder.system.nvml.kernel import kernel_driver, loaded_library, pci_gpus
from builder.system.nvml.library import Failed, call, load, pci_address, told
from builder.system.nvml.values import (
    LIBRARY,
    LIBRARY_NOT_FOUND,
    Gpu,
    GpuLink,
    NvmlFault,
    NvmlReading,
)

# nvmlGpuTopologyLevel_t, as `nvidia-smi topo -m` writes it
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def read(
    *, library: str = LIBRARY, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> NvmlReading:
    """Read this host's driver and GPUs. It raises nothing: what failed is in the value.

    A GPU that is lost or asks for a reset has an entry with its fault and what it still says.
    """
    host = NvmlReading(kernel_driver=kernel_driver(proc), pci_gpus=pci_gpus(sys))
    try:
        load(library)
    except OSError as error:
        number = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        fault = NvmlFault(call="dlopen", number=number, name=LIBRARY_NOT_FOUND, text=str(error))
        return dataclasses.replace(host, fault=fault)
    host = dataclasses.replace(host, library=loaded_library(library, proc))
    try:
        call("nvmlInit")
    except Failed as failed:
        return dataclasses.replace(host, fault=failed.fault)
    try:
        return _of_host(host)
    finally:
        with contextlib.suppress(Failed):
            call("nvmlShutdown")


def _of_host(host: NvmlReading) -> NvmlReading:
    try:
        gpus = [read_gpu(index) for index in range(call("nvmlDeviceGetCount"))]
        return dataclasses.replace(
            host,
            driver=told("nvmlSystemGetDriverVersion") or "",
            cuda=_cuda(),
            gpus=tuple(gpu for gpu, _ in gpus),
            links=tuple(_links(gpus)),
        )
    except Failed as failed:
        return dataclasses.replace(host, fault=failed.fault)


def _cuda() -> str:
    """The newest CUDA of the driver; the second call is for drivers older than 440."""
    for name in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        with contextlib.suppress(Failed):
            if number := told(name):
                return f"{number // 1000}.{number % 1000 // 10}"
    return ""


def _links(gpus: Sequence[tuple[Gpu, object]]) -> Iterator[GpuLink]:
    """A link for each two GPUs that answer, from the GPUs with their handles."""
    sound = [(gpu, handle) for gpu, handle in gpus if handle is not None and not gpu.fault]
    for position, (a, handle) in enumerate(sound):
        direct = _peers(handle) if a.nvlinks else []
        for b, other in sound[position + 1 :]:
            yield GpuLink(
                a=a.index,
                b=b.index,
                nvlinks=direct.count(b.pci),
                pcie=_level(handle, other),
            )


def _level(gpu: object, other: object) -> str:
    with contextlib.suppress(Failed):
        return _LEVELS.get(told("nvmlDeviceGetTopologyCommonAncestor", gpu, other), "")
    return ""


def _peers(gpu: object) -> list[str]:
    """The PCI addresses at the other ends of a GPU's NVLinks: GPUs, switches, or a POWER9."""
    peers = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        with contextlib.suppress(Failed):  # a link that is down has no other end
            peers.append(pci_address(told("nvmlDeviceGetNvLinkRemotePciInfo", gpu, link)))
    return peers


if __name__ == "__main__":
    print(read(library=sys.argv[1]).as_json())
