"""NVIDIA's driver and GPUs on this host: from its management library (NVML) and from the kernel.

The library comes with the driver. A process of its own calls it (`nvml_reader`), since a sick GPU
can end or block the caller: `ask` returns one reading, `watcher` is the command that samples GPUs.
No value here is a judgement: `builder.host.doctor` judges.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.model.records import read
from builder.system.files import text_of
from builder.system.orphans import Daemons
from builder.system.process import Processes

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_NOT_FOUND = "NVML_ERROR_LIBRARY_NOT_FOUND"
NO_ANSWER = "NO_ANSWER"
WATCHED_EVERY_S = 0.5
TIMEOUT_S = 30.0  # without the persistence daemon, each GPU takes seconds to wake up
_ABANDONED_S = 10.0  # in a call of the kernel that never returns, a process cannot be ended either
_PACKAGES = Path(__file__).resolve().parents[2]
_VERSION = re.compile(r"Kernel Module\D*?\s(?:for \S+\s+)?(?P<version>\d+(?:\.\d+)+)")
_MODEL = re.compile(r"^Model:\s*(?P<model>.+)$", re.MULTILINE)
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI vendor and class: VGA and 3D controllers are 0x03....


@dataclass(frozen=True, kw_only=True, slots=True)
class NvmlFault:
    """A call that failed: `number` and `name` of nvmlReturn_t, and what the library says of it.

    Two are of this package's own: NVML_ERROR_LIBRARY_NOT_FOUND (12) where there is no library to
    call, and NO_ANSWER (-1) where nobody came back.
    """

    call: str
    number: int
    name: str
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EccErrors:
    """Memory errors: `volatile` since the driver was loaded, `aggregate` in the GPU's life."""

    volatile_corrected: int | None = None
    volatile_uncorrected: int | None = None
    aggregate_corrected: int | None = None
    aggregate_uncorrected: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RetiredPages:
    """Pages of memory that are used no more (Pascal to Volta); `pending` ones wait for a reboot."""

    single_bit: int
    double_bit: int
    pending: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RemappedRows:
    """Rows of memory replaced by spare ones (Ampere and newer); `pending` wait for a reset."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuLink:
    """The way from GPU `a` to GPU `b`: `nvlinks` direct links, and the PCIe level between them.

    `pcie` is PIX, PXB, PHB, NODE or SYS as `nvidia-smi topo -m` writes it; empty if not told.
    """

    a: int
    b: int
    nvlinks: int
    pcie: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU. None is what it does not say: most fields depend on model and driver.

    `index` is NVML's, in the order of the PCI bus. Temperatures are in degrees Celsius, power in
    watts, clocks in MHz, memory in bytes. `throttling` holds the bits of nvmlClocksEventReasons.
    `nvlinks` counts links that are up, `nvlinks_down` those that are not. `mig_devices` is None
    where MIG is off. `fault` is the first call that failed otherwise than by not being supported.
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
    """This host's driver and GPUs. What could not be read is empty, and `fault` says why.

    `library` is the file that was loaded; `driver` the version that the library is of and
    `kernel_driver` the one of the loaded kernel module, from /proc/driver/nvidia/version; `cuda`
    the newest CUDA that the driver supports (12.4). `pci_gpus` are the addresses of NVIDIA's GPUs
    on the PCI bus, whether the driver shows them or not.
    """

    library: str = ""
    driver: str = ""
    kernel_driver: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    pci_gpus: tuple[str, ...] = ()
    fault: NvmlFault | None = None

    @property
    def driver_version(self) -> str:
        """The kernel module's version, or where /proc does not tell it (as in gVisor) NVML's."""
        return self.kernel_driver or self.driver

    def as_json(self) -> str:
        """Everything, as one JSON document; `reading_of` reads it."""
        return json.dumps(asdict(self), sort_keys=True)


def reading_of(text: str) -> NvmlReading:
    """Return the reading that `NvmlReading.as_json` wrote; raises ValueError for anything else."""
    document = json.loads(text)
    if not document:
        raise ValueError("no reading of NVML")
    return read(NvmlReading, document, "reading")


def ask(
    processes: Processes, *, library: str = LIBRARY, timeout_s: float = TIMEOUT_S
) -> NvmlReading:
    """Return this host's driver and GPUs, read by a process of its own in `timeout_s` seconds.

    Without an answer, the reading's fault is NO_ANSWER and says what happened.
    """
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
    """Return the command line of a process that prints what GPUs do, again and again."""
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
    """Return whether NVIDIA's kernel module is loaded; it need not say its version."""
    return (proc / "driver/nvidia/version").is_file()


def kernel_driver(proc: Path = Path("/proc")) -> str:
    """Return the version of NVIDIA's loaded kernel module (535.104.05); empty without one."""
    match = _VERSION.search(text_of(proc / "driver/nvidia/version"))
    return match["version"] if match else ""


def gpu_models(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the models of the GPUs that the kernel module has; empty for one that has no name."""
    files = sorted((proc / "driver/nvidia/gpus").glob("*/information"))
    matches = [_MODEL.search(text_of(file)) for file in files]
    return tuple(match["model"].strip() if match else "" for match in matches)


def pci_gpus(sys: Path = Path("/sys")) -> tuple[str, ...]:
    """Return the PCI addresses of NVIDIA's GPUs, with or without a driver."""
    return tuple(
        folder.name
        for folder in sorted((sys / "bus/pci/devices").glob("*"))
        if text_of(folder / "class").startswith(_DISPLAY)
        and text_of(folder / "vendor").strip() == _NVIDIA
    )
