"""What NVIDIA's management library (NVML) says of this host's driver and GPUs.

The library comes with the driver. `ask` has a process of its own look, since a sick GPU can end or
hold up whoever asks; `read` looks in this one. `watcher` goes on looking while others work. No
value here is a judgement: builder.host.doctor judges.
"""

from __future__ import annotations

from builder.system.nvml.asking import ask
from builder.system.nvml.library import LIBRARY
from builder.system.nvml.reading import gpu_models, kernel_driver, pci_gpus, read
from builder.system.nvml.values import (
    LIBRARY_NOT_FOUND,
    EccErrors,
    Gpu,
    GpuLink,
    NvmlFault,
    NvmlReading,
    RemappedRows,
    RetiredPages,
)
from builder.system.nvml.watching import INTERVAL_S as WATCHED_EVERY_S
from builder.system.nvml.watching import watcher

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
    "read",
    "watcher",
]
