"""One GPU: all that it can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pynvml

from builder.system.nvml.library import Failed, call, pci_address, told
from builder.system.nvml.values import EccErrors, Gpu, RemappedRows, RetiredPages


def read_gpu(index: int) -> tuple[Gpu, object]:
    """A GPU and its handle; None for a handle that was not given."""
    try:
        handle = call("nvmlDeviceGetHandleByIndex", index)
    except Failed as failed:
        return Gpu(index=index, fault=failed.fault), None
    answers: dict[str, Any] = {}
    fault = None
    for name, question in _questions(handle).items():
        try:
            answers[name] = question()
        except Failed as failed:  # the other questions may still have answers
            fault = fault or failed.fault
    return Gpu(index=index, fault=fault, **answers), handle


def read_use(gpu: object) -> dict[str, float | None]:
    """What a GPU does: three questions, by its handle. Raises `Failed` with the first fault."""
    percent = _utilization(gpu)
    return {
        "busy": None if percent is None else percent / 100,
        "memory_bytes": _memory(gpu, "used"),
        "power_w": _thousandth(told("nvmlDeviceGetPowerUsage", gpu)),
    }


def _questions(gpu: object) -> dict[str, Callable[[], object]]:
    """What is asked of a GPU, by the field of `Gpu` that takes the answer."""

    def number(name: str, *arguments: int) -> Callable[[], int | None]:
        return lambda: told(f"nvmlDeviceGet{name}", gpu, *arguments)

    def text(name: str) -> Callable[[], str]:
        return lambda: told(f"nvmlDeviceGet{name}", gpu) or ""

    def flag(name: str) -> Callable[[], bool | None]:
        return lambda: _as_bool(told(f"nvmlDeviceGet{name}", gpu))

    def watts(name: str) -> Callable[[], float | None]:
        return lambda: _thousandth(told(f"nvmlDeviceGet{name}", gpu))

    return {
        "name": text("Name"),
        "uuid": text("UUID"),
        "pci": lambda: pci_address(told("nvmlDeviceGetPciInfo_v3", gpu)),
        "compute_capability": lambda: _capability(gpu),
        "memory_bytes": lambda: _memory(gpu, "total"),
        "memory_used_bytes": lambda: _memory(gpu, "used"),
        "temperature_c": number("Temperature", pynvml.NVML_TEMPERATURE_GPU),
        "slowdown_c": number("TemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        "power_w": watts("PowerUsage"),
        "power_limit_w": watts("EnforcedPowerLimit"),
        "sm_clock_mhz": number("ClockInfo", pynvml.NVML_CLOCK_SM),
        "sm_clock_max_mhz": number("MaxClockInfo", pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": number("ClockInfo", pynvml.NVML_CLOCK_MEM),
        "performance_state": number("PerformanceState"),
        "throttling": lambda: _throttling(gpu),
        "persistence": flag("PersistenceMode"),
        "compute_mode": number("ComputeMode"),
        "utilization_percent": lambda: _utilization(gpu),
        "ecc_enabled": lambda: _mode("nvmlDeviceGetEccMode", gpu),
        "ecc": lambda: _ecc(gpu),
        "retired_pages": lambda: _retired(gpu),
        "remapped_rows": lambda: _remapped(gpu),
        "mig_enabled": lambda: _mode("nvmlDeviceGetMigMode", gpu),
        "mig_devices": lambda: _mig_devices(gpu),
        "pcie_generation": number("CurrPcieLinkGeneration"),
        "pcie_width": number("CurrPcieLinkWidth"),
        "pcie_width_max": number("MaxPcieLinkWidth"),
        "nvlinks": lambda: sum(_link_states(gpu)),
        "nvlinks_down": lambda: sum(not up for up in _link_states(gpu)),
    }


def _as_bool(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _mode(name: str, gpu: object) -> bool | None:
    """Whether a mode is on: the first of two numbers, before what comes with the next reset."""
    modes = told(name, gpu)
    return bool(modes[0]) if modes else None


def _capability(gpu: object) -> str:
    return ".".join(map(str, told("nvmlDeviceGetCudaComputeCapability", gpu) or ()))


def _memory(gpu: object, field: str) -> int | None:
    memory = told("nvmlDeviceGetMemoryInfo", gpu)
    return int(getattr(memory, field)) if memory else None


def _throttling(gpu: object) -> int | None:
    """The bits of why clocks are low; the call got a new name with driver 535."""
    bits: int | None = told("nvmlDeviceGetCurrentClocksEventReasons", gpu)
    return told("nvmlDeviceGetCurrentClocksThrottleReasons", gpu) if bits is None else bits


def _utilization(gpu: object) -> int | None:
    rates = told("nvmlDeviceGetUtilizationRates", gpu)
    return int(rates.gpu) if rates else None


def _ecc(gpu: object) -> EccErrors:
    def count(kind: int, counter: int) -> int | None:
        errors: int | None = told("nvmlDeviceGetTotalEccErrors", gpu, kind, counter)
        return errors

    corrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    return EccErrors(
        volatile_corrected=count(corrected, pynvml.NVML_VOLATILE_ECC),
        volatile_uncorrected=count(uncorrected, pynvml.NVML_VOLATILE_ECC),
        aggregate_corrected=count(corrected, pynvml.NVML_AGGREGATE_ECC),
        aggregate_uncorrected=count(uncorrected, pynvml.NVML_AGGREGATE_ECC),
    )


def _retired(gpu: object) -> RetiredPages | None:
    pending = told("nvmlDeviceGetRetiredPagesPendingStatus", gpu)
    single, double = (
        told("nvmlDeviceGetRetiredPages", gpu, cause)
        for cause in (
            pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
        )
    )
    if pending is None or single is None or double is None:
        return None
    return RetiredPages(single_bit=len(single), double_bit=len(double), pending=bool(pending))


def _remapped(gpu: object) -> RemappedRows | None:
    rows = told("nvmlDeviceGetRemappedRows", gpu)
    if rows is None:
        return None
    correctable, uncorrectable, pending, failed = rows
    return RemappedRows(
        correctable=correctable,
        uncorrectable=uncorrectable,
        pending=bool(pending),
        failed=bool(failed),
    )


def _mig_devices(gpu: object) -> int | None:
    """Return how many devices a GPU in MIG mode was divided into: without any, CUDA finds none."""
    if not _mode("nvmlDeviceGetMigMode", gpu):
        return None
    devices = 0
    for index in range(told("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0):
        try:
            devices += told("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index) is not None
        except Failed as failed:
            if failed.fault.number != pynvml.NVML_ERROR_NOT_FOUND:
                raise
    return devices


def _link_states(gpu: object) -> Iterator[bool]:
    """Return whether each of the NVLinks that the GPU has is up."""
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            state = told("nvmlDeviceGetNvLinkState", gpu, link)
        except Failed as failed:
            if failed.fault.number == pynvml.NVML_ERROR_INVALID_ARGUMENT:  # there are fewer
                return
            raise
        if state is None:
            return
        yield bool(state)
