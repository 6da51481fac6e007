"""What NVIDIA's management library (NVML) says of this host's driver and GPUs.

The library comes with the driver. `ask` has a process of its own look, since a sick GPU can end or
hold up whoever asks; `watcher` goes on looking while others work. No
value here is a judgement: builder.host.doctor judges.
"""

from __future__ import annotations

from builder.system.nvml.asking import WATCHED_EVERY_S, ask, watcher
from builder.system.nvml.kernel import gpu_models, kernel_driver, pci_gpus
from builder.system.nvml.values import (
    LIBRARY,
    LIBRARY_NOT_FOUND,
    EccErrors,
    Gpu,
    GpuLink,
    NvmlFault,
    NvmlReading,
    RemappedRows,
    RetiredPages,
)

__all__ = [
    "LIBRARY",
    "LIBRARY_NOT_FOUND",
    "WATCHED_EVERY_S",
    "EccErrors",
    "Gpu",
    "GpuLink",
    "NvmlFault",
    "NvmlReading",
    "RemappedRows",
    "RetiredPages",
    "ask",
    "gpu_models",
    "kernel_driver",
    "pci_gpus",
    "watcher",
]
