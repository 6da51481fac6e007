"""The calls into libnvidia-ml.so.1, by NVIDIA's nvidia-ml-py.

Importing it takes a tenth of a second, so only the processes that look import this module.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from builder.system.nvml.values import NvmlFault

NAMES = {number: name for name, number in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
# What a model, a driver or an ordinary user cannot be asked is not told, and no fault.
_NOT_TOLD = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_DATA,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
}
# The functions of the library that have other names there than in nvidia-ml-py.
_IN_LIBRARY = {
    "nvmlInit": "nvmlInitWithFlags",
    "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
}


class Failed(Exception):
    """A call failed."""

    def __init__(self, fault: NvmlFault) -> None:
        super().__init__(f"{fault.call}: {fault.name}")
        self.fault = fault


def load(library: str) -> None:
    """Have calls go to a library, by its name or path; raises OSError if it cannot be loaded."""
    pynvml.nvmlLib = ctypes.CDLL(library)


def call(name: str, *arguments: object) -> Any:
    """Call a function; what it answers. Raises `Failed`."""
    try:
        return getattr(pynvml, name)(*arguments)
    except pynvml.NVMLError as error:
        raise Failed(_fault(_IN_LIBRARY.get(name, name), error.value)) from None


def told(name: str, *arguments: object) -> Any:
    """Call a function; None if it cannot be asked. Raises `Failed` for a fault."""
    try:
        return call(name, *arguments)
    except Failed as failed:
        if failed.fault.number in _NOT_TOLD:
            return None
        raise


def _fault(name: str, number: int) -> NvmlFault:
    try:
        text = pynvml.nvmlErrorString(number)
    except pynvml.NVMLError:
        text = ""
    error = NAMES.get(number, f"NVML error {number}")
    return NvmlFault(call=name, number=number, name=error, text=text)


def pci_address(info: pynvml.nvmlPciInfo_t) -> str:
    """An address on the PCI bus as /sys writes it: 0000:3b:00.0; empty if it is not told."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0" if info else ""
