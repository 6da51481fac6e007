"""The calls into libnvidia-ml.so.1, by ctypes.

Signatures, numbers and names: nvml.h of CUDA 12.9, https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

import ctypes
from typing import Any

from builder.system.nvml.values import LIBRARY_NOT_FOUND, NvmlFault

LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96  # the largest of the API's text buffers (NVML_DEVICE_NAME_V2_BUFFER_SIZE, UUID)
MAX_NVLINKS = 18  # NVML_NVLINK_MAX_LINKS

NAMES = {
    1: "NVML_ERROR_UNINITIALIZED",
    2: "NVML_ERROR_INVALID_ARGUMENT",
    3: "NVML_ERROR_NOT_SUPPORTED",
    4: "NVML_ERROR_NO_PERMISSION",
    6: "NVML_ERROR_NOT_FOUND",
    7: "NVML_ERROR_INSUFFICIENT_SIZE",
    8: "NVML_ERROR_INSUFFICIENT_POWER",
    9: "NVML_ERROR_DRIVER_NOT_LOADED",
    10: "NVML_ERROR_TIMEOUT",
    11: "NVML_ERROR_IRQ_ISSUE",
    12: LIBRARY_NOT_FOUND,
    13: "NVML_ERROR_FUNCTION_NOT_FOUND",
    14: "NVML_ERROR_CORRUPTED_INFOROM",
    15: "NVML_ERROR_GPU_IS_LOST",
    16: "NVML_ERROR_RESET_REQUIRED",
    17: "NVML_ERROR_OPERATING_SYSTEM",
    18: "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
    19: "NVML_ERROR_IN_USE",
    20: "NVML_ERROR_MEMORY",
    21: "NVML_ERROR_NO_DATA",
    23: "NVML_ERROR_INSUFFICIENT_RESOURCES",
    25: "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    26: "NVML_ERROR_DEPRECATED",
    27: "NVML_ERROR_NOT_READY",
    28: "NVML_ERROR_GPU_NOT_FOUND",
    29: "NVML_ERROR_INVALID_STATE",
    999: "NVML_ERROR_UNKNOWN",
}
# What a model, a driver or an ordinary user cannot be asked is not told, and no fault.
_NOT_TOLD = {3, 4, 13, 21, 25, 26}


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t, of the calls with _v2 and _v3."""

    _fields_ = [
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class Utilization(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Failed(Exception):
    """A call failed."""

    def __init__(self, fault: NvmlFault) -> None:
        super().__init__(f"{fault.call}: {fault.name}")
        self.fault = fault


class Nvml:
    """The library. Raises OSError when it cannot be loaded."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(library)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns nvmlReturn_t; raises `Failed`."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise Failed(self._fault(name, 13)) from None
        function.restype = ctypes.c_int
        if number := function(*arguments):
            raise Failed(self._fault(name, number))

    def told(self, name: str, *arguments: Any) -> bool:
        """Call a function; whether it answers. Raises `Failed` where that is a fault."""
        try:
            self.call(name, *arguments)
        except Failed as failed:
            if failed.fault.number in _NOT_TOLD:
                return False
            raise
        return True

    def number(self, name: str, *arguments: Any, wide: bool = False) -> int | None:
        """The number that a function writes through its last argument; None if it is not told."""
        value = ctypes.c_ulonglong() if wide else ctypes.c_uint()
        return value.value if self.told(name, *arguments, ctypes.byref(value)) else None

    def text(self, name: str, *arguments: Any) -> str:
        """The text that a function writes into a buffer; empty if it is not told."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        told = self.told(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace") if told else ""

    def _fault(self, call: str, number: int) -> NvmlFault:
        name = NAMES.get(number, f"NVML error {number}")
        return NvmlFault(call=call, number=number, name=name, text=self._meaning(number))

    def _meaning(self, number: int) -> str:
        try:
            function = self._library.nvmlErrorString
        except AttributeError:
            return ""
        function.restype = ctypes.c_char_p
        said = function(ctypes.c_int(number))
        return said.decode(errors="replace") if said else ""


def pci_address(nvml: Nvml, name: str, *arguments: Any) -> str:
    """The address that a function tells, as /sys writes it: 0000:3b:00.0; empty if not told."""
    found = PciInfo()
    if not nvml.told(name, *arguments, ctypes.byref(found)):
        return ""
    return f"{found.domain:04x}:{found.bus:02x}:{found.device:02x}.0"
