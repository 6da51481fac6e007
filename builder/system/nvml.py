"""NVIDIA's driver and GPUs on this host, read from the driver's library (NVML) and the kernel.

A separate process calls the library (`nvml_reader`), since a sick GPU can end or block the caller.
`ask` returns one reading, `watcher` the command of a process that samples GPUs. Values are not
judged here, but in `builder.host.doctor`. That process imports this module and little else: it
starts in a third of the time that the rest of this package takes.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.system.descendants import text_of

if TYPE_CHECKING:
    from builder.system.process import Processes

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_NOT_FOUND = "NVML_ERROR_LIBRARY_NOT_FOUND"
NO_ANSWER = "NO_ANSWER"
WATCHED_EVERY_S = 0.5
TIMEOUT_S = 30.0  # without the persistence daemon, each GPU takes seconds to wake up
_ABANDONED_S = 10.0  # for a killed process to end; in a system call that hangs, it never ends
_PACKAGES = Path(__file__).resolve().parents[2]
_VERSION = re.compile(r"Kernel Module\D*?\s(?:for \S+\s+)?(?P<version>\d+(?:\.\d+)+)")
_MODEL = re.compile(r"^Model:\s*(?P<model>.+)$", re.MULTILINE)
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI vendor and class: VGA and 3D controllers are 0x03....


@dataclass(frozen=True, kw_only=True, slots=True)
class NvmlFault:
    """A failed call: `number` and `name` of nvmlReturn_t, and the library's text for it.

    This package sets two itself: NVML_ERROR_LIBRARY_NOT_FOUND (12) if the library is missing, and
    NO_ANSWER (-1) if the process did not answer.
    """

    call: str
    number: int
    name: str
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EccErrors:
    """Memory errors: `volatile` since the driver was loaded, `aggregate` in the GPU's lifetime."""

    volatile_corrected: int | None = None
    volatile_uncorrected: int | None = None
    aggregate_corrected: int | None = None
    aggregate_uncorrected: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RetiredPages:
    """Retired pages of memory (Pascal to Volta); `pending` ones are retired at the next reboot."""

    single_bit: int
    double_bit: int
    pending: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RemappedRows:
    """Memory rows replaced by spare ones (Ampere and newer); `pending` ones wait for a reset."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU. None means not reported: most fields depend on model and driver.

    `index` is NVML's, in the order of the PCI bus. Temperatures are in degrees Celsius, power in
    watts, clocks in MHz, memory in bytes. `throttling` holds the bits of nvmlClocksEventReasons.
    `nvlinks` counts links that are up, `nvlinks_down` those that are not. `mig_devices` is None
    where MIG is off. `fault` is the first failed call, not counting unsupported ones.
    """

    index: int
    name: str = ""
    uuid: str = ""
    pci: str = ""
    compute_capability: str = ""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    performance_state: int | None = None
    throttling: int | None = None
    persistence: bool | None = None
    compute_mode: int | None = None
    utilization_percent: int | None = None
    ecc_enabled: bool | None = None
    ecc: EccErrors = EccErrors()
    retired_pages: RetiredPages | None = None
    remapped_rows: RemappedRows | None = None
    mig_enabled: bool | None = None
    mig_devices: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks: int = 0
    nvlinks_down: int = 0
    fault: NvmlFault | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NvmlReading:
    """This host's driver and GPUs. Values that could not be read are empty; `fault` is the reason.

    `library` is the loaded file, `driver` its version, `kernel_driver` the version of the loaded
    kernel module, from /proc/driver/nvidia/version; `cuda` is the newest CUDA that the driver
    supports (12.4). `pci_gpus` are the addresses of all NVIDIA GPUs on the PCI bus, even if the
    driver does not show them.
    """

    library: str = ""
    driver: str = ""
    kernel_driver: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    pci_gpus: tuple[str, ...] = ()
    fault: NvmlFault | None = None

    @property
    def driver_version(self) -> str:
        """The kernel module's version; NVML's if /proc does not have it, as in gVisor."""
        return self.kernel_driver or self.driver

    def as_json(self) -> str:
        """Return the reading as JSON; `reading_of` reads it."""
        return json.dumps(asdict(self), sort_keys=True)


def reading_of(text: str) -> NvmlReading:
    """Return the reading in the JSON of `NvmlReading.as_json`; raises ValueError for other text."""
    from builder.model.records import read  # noqa: PLC0415 - not in the reader's process

    document = json.loads(text)
    if not document:
        raise ValueError("not a reading of NVML")
    return read(NvmlReading, document, "reading")


def ask(
    processes: Processes, *, library: str = LIBRARY, timeout_s: float = TIMEOUT_S
) -> NvmlReading:
    """Return this host's driver and GPUs, read by a separate process within `timeout_s` seconds.

    Without an answer, the reading's fault is NO_ANSWER, with the reason as text.
    """
    from builder.system.orphans import Daemons  # noqa: PLC0415 - not in the reader's process

    answer = Daemons(1).begin(
        lambda: processes.capture(_reader("read_once", library), check=False, timeout_s=timeout_s)
    )
    late = f"no answer within {timeout_s:.0f} s"
    try:
        done = answer.result(timeout_s + _ABANDONED_S)
        return _no_answer(late) if done.timed_out else reading_of(done.stdout)
    except concurrent.futures.TimeoutError:
        return _no_answer(f"hangs, and cannot be killed: {late}")
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:]
        end = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        return _no_answer(": ".join([f"the process that queried NVML ended with {end}", *last]))


def watcher(library: str = LIBRARY) -> tuple[str, ...]:
    """Return the command line of a process that repeatedly prints the use of the GPUs."""
    return _reader("watch", library)


def _reader(function: str, library: str) -> tuple[str, ...]:
    begin = (
        f"import sys; sys.path = {[str(_PACKAGES), *sys.path]!r}; "
        f"from builder.system.nvml_reader import {function}; {function}(sys.argv[1])"
    )
    return (sys.executable, "-I", "-B", "-c", begin, library)


def _no_answer(text: str) -> NvmlReading:
    fault = NvmlFault(call=LIBRARY, number=-1, name=NO_ANSWER, text=text)
    return NvmlReading(kernel_driver=kernel_driver(), fault=fault)


def is_loaded(proc: Path = Path("/proc")) -> bool:
    """Return whether NVIDIA's kernel module is loaded, even if its version is unknown."""
    return (proc / "driver/nvidia/version").is_file()


def kernel_driver(proc: Path = Path("/proc")) -> str:
    """Return the version of NVIDIA's loaded kernel module (535.104.05), or an empty text."""
    match = _VERSION.search(text_of(proc / "driver/nvidia/version"))
    return match["version"] if match else ""


def gpu_models(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the models of the kernel module's GPUs; an empty text for a GPU without a name."""
    files = sorted((proc / "driver/nvidia/gpus").glob("*/information"))
    matches = [_MODEL.search(text_of(file)) for file in files]
    return tuple(match["model"].strip() if match else "" for match in matches)


def pci_gpus(sys: Path = Path("/sys")) -> tuple[str, ...]:
    """Return the PCI addresses of NVIDIA GPUs, with or without a driver."""
    return tuple(
        folder.name
        for folder in sorted((sys / "bus/pci/devices").glob("*"))
        if text_of(folder / "class").startswith(_DISPLAY)
        and text_of(folder / "vendor").strip() == _NVIDIA
    )
