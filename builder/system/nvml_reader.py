"""Calls into libnvidia-ml.so.1 with NVIDIA's nvidia-ml-py; only separate processes import this.

`read_once` prints a reading as JSON. `watch` prints the use of the GPUs twice a second, as a line
of JSON: a list with an object for each GPU, with `index`, `busy` (the share of the time, 0 to 1),
`memory_bytes` and `power_w`; null means not reported. It ends at the first fault, which it prints
on standard error, and when its output is no longer read.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml

from builder.system.nvml import (
    LIBRARY,
    LIBRARY_NOT_FOUND,
    WATCHED_EVERY_S,
    EccErrors,
    Gpu,
    NvmlFault,
    NvmlReading,
    RemappedRows,
    RetiredPages,
    kernel_driver,
    pci_gpus,
)

_HANGS_S = 40  # after which no caller waits; longer than a GPU takes to wake up
_ERRORS = {number: name for name, number in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
# Not a fault: a query that the model, the driver or an ordinary user's rights do not support, or
# that is about a link or MIG device that the GPU does not have.
_NOT_ANSWERED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_DATA,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_NOT_FOUND,
}


class _CallFailed(Exception):
    """A call of the library failed; `fault` describes the failure."""

    def __init__(self, fault: NvmlFault) -> None:
        super().__init__(f"{fault.call}: {fault.name}")
        self.fault = fault


def read_once(library: str) -> None:
    """Print a reading of this host; `library` is a name or a path."""
    print(read(library=library).as_json())


def watch(library: str) -> None:
    """Print the use of the GPUs until the process is ended."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        _watch(library)
    except (OSError, _CallFailed) as error:
        sys.exit(str(error))


def _watch(library: str) -> None:
    signal.alarm(_HANGS_S)  # ends this process, even during a call into the library
    _load(library)
    _call("nvmlInit")
    gpus = [
        _call("nvmlDeviceGetHandleByIndex", index) for index in range(_call("nvmlDeviceGetCount"))
    ]
    while True:
        signal.alarm(_HANGS_S)
        uses = [_use(index, gpu) for index, gpu in enumerate(gpus)]
        print(json.dumps(uses), flush=True)
        time.sleep(WATCHED_EVERY_S)


def _use(index: int, gpu: object) -> dict[str, object]:
    rates = _query("nvmlDeviceGetUtilizationRates", gpu)
    call = "nvmlDeviceGetMemoryInfo"
    memory = _query(call, gpu, pynvml.nvmlMemory_v2) or _query(call, gpu)
    milliwatts = _query("nvmlDeviceGetPowerUsage", gpu)
    return {
        "index": index,
        "busy": rates and rates.gpu / 100,
        "memory_bytes": memory and memory.used,
        "power_w": _thousandth(milliwatts),
    }


def read(
    *, library: str = LIBRARY, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> NvmlReading:
    """Return this host's driver and GPUs. It raises nothing: failures are in the reading.

    A GPU that is lost or needs a reset has an entry with its fault and all that it still reports.
    """
    host = NvmlReading(kernel_driver=kernel_driver(proc), pci_gpus=pci_gpus(sys))
    try:
        _load(library)
    except OSError as error:
        number = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        fault = NvmlFault(call="dlopen", number=number, name=LIBRARY_NOT_FOUND, text=str(error))
        return dataclasses.replace(host, fault=fault)
    host = dataclasses.replace(host, library=_loaded_file(library, proc))
    try:
        _call("nvmlInit")
        return dataclasses.replace(
            host,
            driver=_query("nvmlSystemGetDriverVersion") or "",
            cuda=_cuda(),
            gpus=tuple(map(_read_gpu, range(_call("nvmlDeviceGetCount")))),
        )
    except _CallFailed as failed:
        return dataclasses.replace(host, fault=failed.fault)
    finally:
        with contextlib.suppress(_CallFailed):
            _call("nvmlShutdown")


def _load(library: str) -> None:
    """Load a library, by name or path, for all calls; raises OSError if that fails."""
    pynvml.nvmlLib = ctypes.CDLL(library)


def _loaded_file(library: str, proc: Path) -> str:
    """Return the file that was loaded for a library, from this process's memory map."""
    with contextlib.suppress(OSError):
        for line in (proc / "self/maps").read_text(errors="replace").splitlines():
            path = line.partition("/")[2]
            if Path(path).name.startswith("libnvidia-ml.so"):
                return f"/{path}"
    return library


def _call(name: str, *arguments: object) -> Any:
    """Call a function of nvidia-ml-py, and return its value; raises `_CallFailed`."""
    try:
        return getattr(pynvml, name)(*arguments)
    except pynvml.NVMLError as error:
        number = error.value
    text = ""
    with contextlib.suppress(pynvml.NVMLError):
        text = pynvml.nvmlErrorString(number)
    error_name = _ERRORS.get(number, f"NVML error {number}")
    raise _CallFailed(NvmlFault(call=name, number=number, name=error_name, text=text))


def _query(name: str, *arguments: object) -> Any:
    """Call a function, and return its value; None if the query is not supported."""
    try:
        return _call(name, *arguments)
    except _CallFailed as failed:
        if failed.fault.number in _NOT_ANSWERED:
            return None
        raise


def _cuda() -> str:
    """Return the newest CUDA of the driver; drivers older than 440 need the second call."""
    for name in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        with contextlib.suppress(_CallFailed):
            if number := _query(name):
                return f"{number // 1000}.{number % 1000 // 10}"
    return ""


def _pci_address(info: pynvml.nvmlPciInfo_t) -> str:
    """Return a PCI address as /sys writes it: 0000:3b:00.0; empty for no address."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0" if info else ""


class _Questions:
    """Queries one GPU and notes the first fault; later queries may still succeed."""

    def __init__(self, gpu: object) -> None:
        self._gpu = gpu
        self.fault: NvmlFault | None = None

    def __call__(self, name: str, *arguments: object) -> Any:
        """Return the result of nvmlDeviceGet...; None if there is none."""
        try:
            return _query(f"nvmlDeviceGet{name}", self._gpu, *arguments)
        except _CallFailed as failed:
            self.fault = self.fault or failed.fault
            return None


def _read_gpu(index: int) -> Gpu:
    """Return a GPU."""
    try:
        handle = _call("nvmlDeviceGetHandleByIndex", index)
    except _CallFailed as failed:
        return Gpu(index=index, fault=failed.fault)
    ask = _Questions(handle)
    # Without what the driver keeps for itself, as nvidia-smi says; drivers before 510 count it.
    memory = ask("MemoryInfo", pynvml.nvmlMemory_v2) or ask("MemoryInfo")
    throttling = ask("CurrentClocksEventReasons")
    if throttling is None:  # the function's name before driver 535
        throttling = ask("CurrentClocksThrottleReasons")
    is_divided = _first_flag(ask("MigMode"))
    links = [ask("NvLinkState", link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    gpu = Gpu(
        index=index,
        name=ask("Name") or "",
        uuid=ask("UUID") or "",
        pci=_pci_address(ask("PciInfo_v3")),
        compute_capability=".".join(map(str, ask("CudaComputeCapability") or ())),
        memory_bytes=memory and memory.total,
        memory_used_bytes=memory and memory.used,
        temperature_c=ask("Temperature", pynvml.NVML_TEMPERATURE_GPU),
        slowdown_c=ask("TemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        power_w=_thousandth(ask("PowerUsage")),
        power_limit_w=_thousandth(ask("EnforcedPowerLimit")),
        sm_clock_mhz=ask("ClockInfo", pynvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=ask("MaxClockInfo", pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask("ClockInfo", pynvml.NVML_CLOCK_MEM),
        performance_state=ask("PerformanceState"),
        throttling=throttling,
        persistence=_first_flag([ask("PersistenceMode")]),
        compute_mode=ask("ComputeMode"),
        utilization_percent=(rates := ask("UtilizationRates")) and rates.gpu,
        ecc_enabled=_first_flag(ask("EccMode")),
        ecc=_ecc(ask),
        retired_pages=_retired(ask),
        remapped_rows=_remapped(ask("RemappedRows")),
        mig_enabled=is_divided,
        mig_devices=_mig_devices(ask) if is_divided else None,
        pcie_generation=ask("CurrPcieLinkGeneration"),
        pcie_width=ask("CurrPcieLinkWidth"),
        pcie_width_max=ask("MaxPcieLinkWidth"),
        nvlinks=links.count(1),
        nvlinks_down=links.count(0),
    )
    return dataclasses.replace(gpu, fault=ask.fault)


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _first_flag(modes: Sequence[int | None] | None) -> bool | None:
    """Return whether a mode is on now; the second number is the mode after the next reset."""
    return None if not modes or modes[0] is None else bool(modes[0])


def _ecc(ask: _Questions) -> EccErrors:
    corrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
    return EccErrors(
        volatile_corrected=ask("TotalEccErrors", corrected, volatile),
        volatile_uncorrected=ask("TotalEccErrors", uncorrected, volatile),
        aggregate_corrected=ask("TotalEccErrors", corrected, aggregate),
        aggregate_uncorrected=ask("TotalEccErrors", uncorrected, aggregate),
    )


def _retired(ask: _Questions) -> RetiredPages | None:
    pending = ask("RetiredPagesPendingStatus")
    single = ask("RetiredPages", pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)
    double = ask("RetiredPages", pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    if pending is None or single is None or double is None:
        return None
    return RetiredPages(single_bit=len(single), double_bit=len(double), pending=bool(pending))


def _remapped(rows: Sequence[int] | None) -> RemappedRows | None:
    if rows is None:
        return None
    correctable, uncorrectable, pending, failed = rows
    return RemappedRows(
        correctable=correctable,
        uncorrectable=uncorrectable,
        pending=bool(pending),
        failed=bool(failed),
    )


def _mig_devices(ask: _Questions) -> int | None:
    """Return the number of a GPU's MIG devices; without any, CUDA finds no device.

    None if a query failed.
    """
    fault_before = ask.fault
    numbers = range(ask("MaxMigDeviceCount") or 0)
    devices = [ask("MigDeviceHandleByIndex", number) for number in numbers]
    if ask.fault is not fault_before:
        return None
    return sum(device is not None for device in devices)
