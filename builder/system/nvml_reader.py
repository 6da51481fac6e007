"""Calls into libnvidia-ml.so.1, by NVIDIA's nvidia-ml-py; only the processes that ask import this.

`read_once` prints a reading as JSON. `watch` prints twice a second what GPUs do, a line of JSON
each time: a list with an object for each GPU, of `index`, `busy` (the share of the time, 0 to 1),
`memory_bytes` and `power_w`; null is what a GPU does not report. With the first fault it ends, and
names it on standard error. It also ends when its output is not read any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pynvml

from builder.system.nvml import (
    LIBRARY,
    LIBRARY_NOT_FOUND,
    WATCHED_EVERY_S,
    EccErrors,
    Gpu,
    GpuLink,
    NvmlFault,
    NvmlReading,
    RemappedRows,
    RetiredPages,
    kernel_driver,
    pci_gpus,
)

_HANGS_S = 40  # then nobody waits any more; longer than a GPU takes to wake up
# nvmlGpuTopologyLevel_t, as `nvidia-smi topo -m` writes it
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_ERRORS = {number: name for name, number in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
# A question that a model, a driver or an ordinary user does not get answered: no fault.
_NOT_ANSWERED = {
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


class _CallFailed(Exception):
    """A call of the library failed, with `fault`."""

    def __init__(self, fault: NvmlFault) -> None:
        super().__init__(f"{fault.call}: {fault.name}")
        self.fault = fault


def read_once(library: str) -> None:
    """Print a reading of this host, by a library's name or path."""
    print(read(library=library).as_json())


def watch(library: str) -> None:
    """Print what GPUs do until somebody ends it."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        _watch(library)
    except (OSError, _CallFailed) as error:
        sys.exit(str(error))


def _watch(library: str) -> None:
    signal.alarm(_HANGS_S)  # ends this process, also within a call into the library
    _load(library)
    _call("nvmlInit")
    gpus = [
        _call("nvmlDeviceGetHandleByIndex", index) for index in range(_call("nvmlDeviceGetCount"))
    ]
    while True:
        signal.alarm(_HANGS_S)
        uses = [
            {
                "index": index,
                "busy": _ask(gpu, "UtilizationRates", convert=lambda rates: rates.gpu / 100),
                "memory_bytes": _ask(gpu, "MemoryInfo", convert=lambda memory: memory.used),
                "power_w": _ask(gpu, "PowerUsage", convert=_thousandth),
            }
            for index, gpu in enumerate(gpus)
        ]
        print(json.dumps(uses), flush=True)
        time.sleep(WATCHED_EVERY_S)


def read(
    *, library: str = LIBRARY, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> NvmlReading:
    """Read this host's driver and GPUs. It raises nothing: what failed is in the reading.

    A GPU that is lost or asks for a reset has an entry with its fault and what it still reports.
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
        gpus = [_read_gpu(index) for index in range(_call("nvmlDeviceGetCount"))]
        return dataclasses.replace(
            host,
            driver=_query("nvmlSystemGetDriverVersion") or "",
            cuda=_cuda(),
            gpus=tuple(gpu for gpu, _ in gpus),
            links=tuple(_links(gpus)),
        )
    except _CallFailed as failed:
        return dataclasses.replace(host, fault=failed.fault)
    finally:
        with contextlib.suppress(_CallFailed):
            _call("nvmlShutdown")


def _load(library: str) -> None:
    """Have calls go to a library, by its name or path; raises OSError if it cannot be loaded."""
    pynvml.nvmlLib = ctypes.CDLL(library)


def _loaded_file(library: str, proc: Path) -> str:
    """Return the file that the loader took for a library, from this process's memory map."""
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
    raise _CallFailed(
        NvmlFault(call=_IN_LIBRARY.get(name, name), number=number, name=error_name, text=text)
    )


def _query(name: str, *arguments: object) -> Any:
    """Call a function, and return its value; None if it is not answered."""
    try:
        return _call(name, *arguments)
    except _CallFailed as failed:
        if failed.fault.number in _NOT_ANSWERED:
            return None
        raise


def _ask(
    gpu: object,
    name: str,
    *arguments: object,
    convert: Callable[..., object] = lambda value: value,
) -> Any:
    """Return the answer of nvmlDeviceGet..., converted; None if there is none."""
    value = _query(f"nvmlDeviceGet{name}", gpu, *arguments)
    return None if value is None else convert(value)


def _cuda() -> str:
    """Return the newest CUDA of the driver; the second call is for drivers older than 440."""
    for name in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        with contextlib.suppress(_CallFailed):
            if number := _query(name):
                return f"{number // 1000}.{number % 1000 // 10}"
    return ""


def _links(gpus: Sequence[tuple[Gpu, object]]) -> Iterator[GpuLink]:
    """Yield a link for each two GPUs that answer, from the GPUs with their handles."""
    sound = [(gpu, handle) for gpu, handle in gpus if handle is not None and not gpu.fault]
    for position, (a, handle) in enumerate(sound):
        direct = _peers(handle) if a.nvlinks else []
        for b, other in sound[position + 1 :]:
            pcie = ""
            with contextlib.suppress(_CallFailed):
                pcie = _LEVELS.get(_ask(handle, "TopologyCommonAncestor", other), "")
            yield GpuLink(a=a.index, b=b.index, nvlinks=direct.count(b.pci), pcie=pcie)


def _peers(gpu: object) -> list[str]:
    """Return the PCI addresses that a GPU's NVLinks lead to: GPUs, switches, or a POWER9."""
    peers = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        with contextlib.suppress(_CallFailed):  # a link that is down has no other end
            peers.append(_pci_address(_ask(gpu, "NvLinkRemotePciInfo", link)))
    return peers


def _pci_address(info: pynvml.nvmlPciInfo_t) -> str:
    """Return a PCI address as /sys writes it: 0000:3b:00.0; empty if there is none."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0" if info else ""


def _read_gpu(index: int) -> tuple[Gpu, object]:
    """Return a GPU and its handle; None for a handle that was not obtained."""
    try:
        handle = _call("nvmlDeviceGetHandleByIndex", index)
    except _CallFailed as failed:
        return Gpu(index=index, fault=failed.fault), None
    answers: dict[str, Any] = {}
    fault = None
    for field, question in _QUESTIONS.items():
        try:
            answers[field] = question(handle)
        except _CallFailed as failed:  # the other questions may still have answers
            fault = fault or failed.fault
    return Gpu(index=index, fault=fault, **answers), handle


def _thousandth(value: int) -> float:
    return value / 1000


def _first_flag(modes: Sequence[int]) -> bool:
    """Return whether a mode is on: the first number, before what comes with the next reset."""
    return bool(modes[0])


def _throttling(gpu: object) -> object:
    """Return the bits of why clocks are low; the call got a new name with driver 535."""
    bits = _ask(gpu, "CurrentClocksEventReasons")
    return _ask(gpu, "CurrentClocksThrottleReasons") if bits is None else bits


def _ecc(gpu: object) -> EccErrors:
    corrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
    return EccErrors(
        volatile_corrected=_ask(gpu, "TotalEccErrors", corrected, volatile),
        volatile_uncorrected=_ask(gpu, "TotalEccErrors", uncorrected, volatile),
        aggregate_corrected=_ask(gpu, "TotalEccErrors", corrected, aggregate),
        aggregate_uncorrected=_ask(gpu, "TotalEccErrors", uncorrected, aggregate),
    )


def _retired(gpu: object) -> RetiredPages | None:
    pending = _ask(gpu, "RetiredPagesPendingStatus", convert=bool)
    single, double = (
        _ask(gpu, "RetiredPages", cause, convert=len)
        for cause in (
            pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
        )
    )
    if None in (pending, single, double):
        return None
    return RetiredPages(single_bit=single, double_bit=double, pending=pending)


def _remapped(rows: Sequence[int]) -> RemappedRows:
    correctable, uncorrectable, pending, failed = rows
    return RemappedRows(
        correctable=correctable,
        uncorrectable=uncorrectable,
        pending=bool(pending),
        failed=bool(failed),
    )


def _mig_devices(gpu: object) -> int | None:
    """Return how many devices a GPU in MIG mode is divided into: without any, CUDA finds none."""
    if not _ask(gpu, "MigMode", convert=_first_flag):
        return None
    devices = 0
    for index in range(_ask(gpu, "MaxMigDeviceCount") or 0):
        try:
            devices += _ask(gpu, "MigDeviceHandleByIndex", index) is not None
        except _CallFailed as failed:
            if failed.fault.number != pynvml.NVML_ERROR_NOT_FOUND:
                raise
    return devices


def _link_states(gpu: object) -> Iterator[bool]:
    """Yield for each NVLink of a GPU whether it is up."""
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            state = _ask(gpu, "NvLinkState", link)
        except _CallFailed as failed:
            if failed.fault.number == pynvml.NVML_ERROR_INVALID_ARGUMENT:  # there are fewer
                return
            raise
        if state is None:
            return
        yield bool(state)


_QUESTIONS: dict[str, Callable[[object], object]] = {  # by the field of `Gpu` that takes the answer
    "name": lambda gpu: _ask(gpu, "Name") or "",
    "uuid": lambda gpu: _ask(gpu, "UUID") or "",
    "pci": lambda gpu: _pci_address(_ask(gpu, "PciInfo_v3")),
    "compute_capability": lambda gpu: ".".join(map(str, _ask(gpu, "CudaComputeCapability") or ())),
    "memory_bytes": lambda gpu: _ask(gpu, "MemoryInfo", convert=lambda memory: memory.total),
    "memory_used_bytes": lambda gpu: _ask(gpu, "MemoryInfo", convert=lambda memory: memory.used),
    "temperature_c": lambda gpu: _ask(gpu, "Temperature", pynvml.NVML_TEMPERATURE_GPU),
    "slowdown_c": lambda gpu: _ask(
        gpu, "TemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    ),
    "power_w": lambda gpu: _ask(gpu, "PowerUsage", convert=_thousandth),
    "power_limit_w": lambda gpu: _ask(gpu, "EnforcedPowerLimit", convert=_thousandth),
    "sm_clock_mhz": lambda gpu: _ask(gpu, "ClockInfo", pynvml.NVML_CLOCK_SM),
    "sm_clock_max_mhz": lambda gpu: _ask(gpu, "MaxClockInfo", pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda gpu: _ask(gpu, "ClockInfo", pynvml.NVML_CLOCK_MEM),
    "performance_state": lambda gpu: _ask(gpu, "PerformanceState"),
    "throttling": _throttling,
    "persistence": lambda gpu: _ask(gpu, "PersistenceMode", convert=bool),
    "compute_mode": lambda gpu: _ask(gpu, "ComputeMode"),
    "utilization_percent": lambda gpu: _ask(gpu, "UtilizationRates", convert=lambda use: use.gpu),
    "ecc_enabled": lambda gpu: _ask(gpu, "EccMode", convert=_first_flag),
    "ecc": _ecc,
    "retired_pages": _retired,
    "remapped_rows": lambda gpu: _ask(gpu, "RemappedRows", convert=_remapped),
    "mig_enabled": lambda gpu: _ask(gpu, "MigMode", convert=_first_flag),
    "mig_devices": _mig_devices,
    "pcie_generation": lambda gpu: _ask(gpu, "CurrPcieLinkGeneration"),
    "pcie_width": lambda gpu: _ask(gpu, "CurrPcieLinkWidth"),
    "pcie_width_max": lambda gpu: _ask(gpu, "MaxPcieLinkWidth"),
    "nvlinks": lambda gpu: sum(_link_states(gpu)),
    "nvlinks_down": lambda gpu: sum(not up for up in _link_states(gpu)),
}
