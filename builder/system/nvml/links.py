"""The ways between GPUs: NVLinks from one to the other, and how far apart they are on PCIe."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

from builder.system.nvml.library import MAX_NVLINKS, Failed, Nvml, pci_address
from builder.system.nvml.values import Gpu, GpuLink

# nvmlGpuTopologyLevel_t, as `nvidia-smi topo -m` writes it
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def read_links(nvml: Nvml, gpus: Sequence[tuple[Gpu, Any]]) -> Iterator[GpuLink]:
    """A link for each two GPUs that answer, given with their handles."""
    whole = [(gpu, handle) for gpu, handle in gpus if handle is not None and not gpu.fault]
    for position, (a, handle) in enumerate(whole):
        direct = _peers(nvml, handle) if a.nvlinks else []
        for b, other in whole[position + 1 :]:
            yield GpuLink(
                a=a.index,
                b=b.index,
                nvlinks=direct.count(b.pci),
                pcie=_level(nvml, handle, other),
            )


def _level(nvml: Nvml, one: Any, other: Any) -> str:
    with contextlib.suppress(Failed):
        level = nvml.number("nvmlDeviceGetTopologyCommonAncestor", one, other)
        return "" if level is None else _LEVELS.get(level, "")
    return ""


def _peers(nvml: Nvml, gpu: Any) -> list[str]:
    """The PCI addresses at the other ends of a GPU's NVLinks: GPUs, switches, or a POWER9."""
    found = []
    for link in range(MAX_NVLINKS):
        with contextlib.suppress(Failed):  # a link that is down has no other end
            words = (gpu, ctypes.c_uint(link))
            found.append(pci_address(nvml, "nvmlDeviceGetNvLinkRemotePciInfo_v2", *words))
    return found
