"""One GPU: all that it can be asked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from builder.system.nvml.library import MAX_NVLINKS, Failed, Memory, Nvml, Utilization, pci_address
from builder.system.nvml.values import EccErrors, Gpu, RemappedRows, RetiredPages

_GPU_TEMPERATURE, _SLOWDOWN, _SM, _MEMORY_CLOCK = 0, 1, 1, 2
_CORRECTED, _UNCORRECTED, _VOLATILE, _AGGREGATE = 0, 1, 0, 1
_SINGLE_BIT, _DOUBLE_BIT = 0, 1


def read_gpu(nvml: Nvml, index: int) -> tuple[Gpu, Any]:
    """A GPU and its handle; None for a handle that was not given."""
    handle = ctypes.c_void_p()
    try:
        nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    except Failed as failed:
        return Gpu(index=index, fault=failed.fault), None
    questions = _questions(nvml, handle)
    found: dict[str, Any] = {}
    fault = None
    for name, question in questions.items():
        try:
            found[name] = question()
        except Failed as failed:  # the other questions may still have answers
            fault = fault or failed.fault
    return Gpu(index=index, fault=fault, **found), handle


def read_use(nvml: Nvml, gpu: Any) -> dict[str, float | None]:
    """What a GPU does: three questions, by its handle. Raises `Failed` with the first fault."""
    percent = _utilization(nvml, gpu)
    return {
        "busy": None if percent is None else percent / 100,
        "memory_bytes": _memory(nvml, gpu, "used"),
        "power_w": _thousandth(nvml.number("nvmlDeviceGetPowerUsage", gpu)),
    }


def _questions(nvml: Nvml, gpu: Any) -> dict[str, Callable[[], Any]]:
    """What is asked of a GPU, by the field of `Gpu` that takes the answer."""

    def number(name: str, *arguments: int) -> Callable[[], int | None]:
        call = f"nvmlDeviceGet{name}"
        return lambda: nvml.number(call, gpu, *map(ctypes.c_uint, arguments))

    def flag(name: str) -> Callable[[], bool | None]:
        return lambda: _as_bool(nvml.number(f"nvmlDeviceGet{name}", gpu))

    def watts(name: str) -> Callable[[], float | None]:
        return lambda: _thousandth(nvml.number(f"nvmlDeviceGet{name}", gpu))

    return {
        "name": lambda: nvml.text("nvmlDeviceGetName", gpu),
        "uuid": lambda: nvml.text("nvmlDeviceGetUUID", gpu),
        "pci": lambda: pci_address(nvml, "nvmlDeviceGetPciInfo_v3", gpu),
        "compute_capability": lambda: _capability(nvml, gpu),
        "memory_bytes": lambda: _memory(nvml, gpu, "total"),
        "memory_used_bytes": lambda: _memory(nvml, gpu, "used"),
        "temperature_c": number("Temperature", _GPU_TEMPERATURE),
        "slowdown_c": number("TemperatureThreshold", _SLOWDOWN),
        "power_w": watts("PowerUsage"),
        "power_limit_w": watts("EnforcedPowerLimit"),
        "sm_clock_mhz": number("ClockInfo", _SM),
        "sm_clock_max_mhz": number("MaxClockInfo", _SM),
        "memory_clock_mhz": number("ClockInfo", _MEMORY_CLOCK),
        "performance_state": number("PerformanceState"),
        "throttling": lambda: _throttling(nvml, gpu),
        "persistence": flag("PersistenceMode"),
        "compute_mode": number("ComputeMode"),
        "utilization_percent": lambda: _utilization(nvml, gpu),
        "ecc_enabled": lambda: _as_bool(_pair(nvml, "nvmlDeviceGetEccMode", gpu)),
        "ecc": lambda: _ecc(nvml, gpu),
        "retired_pages": lambda: _retired(nvml, gpu),
        "remapped_rows": lambda: _remapped(nvml, gpu),
        "mig_enabled": lambda: _as_bool(_pair(nvml, "nvmlDeviceGetMigMode", gpu)),
        "mig_devices": lambda: _mig_devices(nvml, gpu),
        "pcie_generation": number("CurrPcieLinkGeneration"),
        "pcie_width": number("CurrPcieLinkWidth"),
        "pcie_width_max": number("MaxPcieLinkWidth"),
        "nvlinks": lambda: sum(_link_states(nvml, gpu)),
        "nvlinks_down": lambda: sum(not up for up in _link_states(nvml, gpu)),
    }


def _as_bool(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _pair(nvml: Nvml, name: str, gpu: Any) -> int | None:
    """The first of two numbers: what is, before what comes with the next reset."""
    now, later = ctypes.c_uint(), ctypes.c_uint()
    return now.value if nvml.told(name, gpu, ctypes.byref(now), ctypes.byref(later)) else None


def _capability(nvml: Nvml, gpu: Any) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    name = "nvmlDeviceGetCudaComputeCapability"
    told = nvml.told(name, gpu, ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}" if told else ""


def _memory(nvml: Nvml, gpu: Any, field: str) -> int | None:
    found = Memory()
    told = nvml.told("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(found))
    return int(getattr(found, field)) if told else None


def _throttling(nvml: Nvml, gpu: Any) -> int | None:
    """The call got a new name with driver 535."""
    for name in (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ):
        if (found := nvml.number(name, gpu, wide=True)) is not None:
            return found
    return None


def _utilization(nvml: Nvml, gpu: Any) -> int | None:
    found = Utilization()
    told = nvml.told("nvmlDeviceGetUtilizationRates", gpu, ctypes.byref(found))
    return int(found.gpu) if told else None


def _ecc(nvml: Nvml, gpu: Any) -> EccErrors:
    def count(kind: int, counter: int) -> int | None:
        words = (ctypes.c_uint(kind), ctypes.c_uint(counter))
        return nvml.number("nvmlDeviceGetTotalEccErrors", gpu, *words, wide=True)

    return EccErrors(
        volatile_corrected=count(_CORRECTED, _VOLATILE),
        volatile_uncorrected=count(_UNCORRECTED, _VOLATILE),
        aggregate_corrected=count(_CORRECTED, _AGGREGATE),
        aggregate_uncorrected=count(_UNCORRECTED, _AGGREGATE),
    )


def _retired(nvml: Nvml, gpu: Any) -> RetiredPages | None:
    pending = nvml.number("nvmlDeviceGetRetiredPagesPendingStatus", gpu)
    counts = [_pages(nvml, gpu, cause) for cause in (_SINGLE_BIT, _DOUBLE_BIT)]
    if pending is None or counts[0] is None or counts[1] is None:
        return None
    return RetiredPages(single_bit=counts[0], double_bit=counts[1], pending=bool(pending))


def _pages(nvml: Nvml, gpu: Any, cause: int) -> int | None:
    """Their number: a call without room for addresses says how much it wants, as error 7."""
    count = ctypes.c_uint(0)
    try:
        words = (ctypes.c_uint(cause), ctypes.byref(count), None)
        told = nvml.told("nvmlDeviceGetRetiredPages", gpu, *words)
    except Failed as failed:
        if failed.fault.number != 7:  # noqa: PLR2004 - NVML_ERROR_INSUFFICIENT_SIZE
            raise
        told = True
    return count.value if told else None


def _remapped(nvml: Nvml, gpu: Any) -> RemappedRows | None:
    values = [ctypes.c_uint() for _ in range(4)]
    if not nvml.told("nvmlDeviceGetRemappedRows", gpu, *map(ctypes.byref, values)):
        return None
    correctable, uncorrectable, pending, failed = (one.value for one in values)
    return RemappedRows(
        correctable=correctable,
        uncorrectable=uncorrectable,
        pending=bool(pending),
        failed=bool(failed),
    )


def _mig_devices(nvml: Nvml, gpu: Any) -> int | None:
    """How many devices a GPU in MIG mode was divided into: without any, CUDA finds none."""
    if not _pair(nvml, "nvmlDeviceGetMigMode", gpu):
        return None
    most = nvml.number("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0
    found = 0
    for index in range(most):
        handle = ctypes.c_void_p()
        try:
            words = (ctypes.c_uint(index), ctypes.byref(handle))
            found += nvml.told("nvmlDeviceGetMigDeviceHandleByIndex", gpu, *words)
        except Failed as failed:
            if failed.fault.name != "NVML_ERROR_NOT_FOUND":
                raise
    return found


def _link_states(nvml: Nvml, gpu: Any) -> Iterator[bool]:
    """Whether each of the NVLinks that the GPU has is up."""
    for link in range(MAX_NVLINKS):
        try:
            state = nvml.number("nvmlDeviceGetNvLinkState", gpu, ctypes.c_uint(link))
        except Failed as failed:
            if failed.fault.name == "NVML_ERROR_INVALID_ARGUMENT":  # there are fewer
                return
            raise
        if state is None:
            return
        yield bool(state)
