"""NVIDIA's management library, which comes with the driver: GPUs, capabilities, MIG.

https://docs.nvidia.com/deploy/nvml-api/; it is loaded, and no program is started.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Protocol

from builder.hosts.record import HostGpu

LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE
_OK, _NOT_SUPPORTED, _NOT_FOUND, _MISMATCH = 0, 3, 6, 18
_ERRORS = {
    9: "the driver is not loaded (NVML_ERROR_DRIVER_NOT_LOADED)",
    15: "a GPU has fallen off the bus (NVML_ERROR_GPU_IS_LOST)",
    _MISMATCH: "its version is not that of the loaded module (NVML_ERROR_LIB_RM_VERSION_MISMATCH)",
}


class Library(Protocol):
    """What ctypes makes of a shared library: functions as attributes, which return an error."""

    def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The GPUs, or None with the reason, if there is one, why the library does not tell them."""

    devices: tuple[HostGpu, ...] | None
    fault: str = ""


def load() -> Library | None:
    """The library; None where there is none to load."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def ask(library: Library) -> Answer:
    """All GPUs that the driver shows."""
    if code := library.nvmlInit_v2():
        return Answer(devices=None, fault=_ERRORS.get(code, f"NVML error {code}"))
    try:
        number = ctypes.c_uint()
        if code := library.nvmlDeviceGetCount_v2(ctypes.byref(number)):
            return Answer(devices=None, fault=_ERRORS.get(code, f"NVML error {code}"))
        return Answer(devices=tuple(_gpu(library, index) for index in range(number.value)))
    finally:
        library.nvmlShutdown()


def _gpu(library: Library, index: int) -> HostGpu:
    device = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
        return HostGpu()
    mig, instances = _mig(library, device)
    return HostGpu(
        model=_model(library, device),
        capability=_capability(library, device),
        mig=mig,
        mig_instances=instances,
    )


def _model(library: Library, device: ctypes.c_void_p) -> str:
    name = ctypes.create_string_buffer(_TEXT_BYTES)
    code = library.nvmlDeviceGetName(device, name, ctypes.c_uint(_TEXT_BYTES))
    return "" if code else name.value.decode(errors="replace")


def _capability(library: Library, device: ctypes.c_void_p) -> int | None:
    major, minor = ctypes.c_int(), ctypes.c_int()
    code = library.nvmlDeviceGetCudaComputeCapability(
        device, ctypes.byref(major), ctypes.byref(minor)
    )
    return None if code else major.value * 10 + minor.value


def _mig(library: Library, device: ctypes.c_void_p) -> tuple[bool | None, int | None]:
    """Whether MIG is on, and its instances; drivers before 450 have no such function."""
    try:
        mode = library.nvmlDeviceGetMigMode
    except AttributeError:
        return False, None
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    code = mode(device, ctypes.byref(current), ctypes.byref(pending))
    if code == _NOT_SUPPORTED:
        return False, None
    if code:
        return None, None
    return (True, _instances(library, device)) if current.value else (False, None)


def _instances(library: Library, device: ctypes.c_void_p) -> int | None:
    most = ctypes.c_uint()
    if library.nvmlDeviceGetMaxMigDeviceCount(device, ctypes.byref(most)):
        return None
    found = 0
    for index in range(most.value):
        part = ctypes.c_void_p()
        code = library.nvmlDeviceGetMigDeviceHandleByIndex(
            device, ctypes.c_uint(index), ctypes.byref(part)
        )
        if code not in (_OK, _NOT_FOUND):
            return None
        found += code == _OK
    return found
