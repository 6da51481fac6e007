"""The values of a reading, and their way through JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from builder.model.records import read

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_NOT_FOUND = "NVML_ERROR_LIBRARY_NOT_FOUND"
NO_ANSWER = "NO_ANSWER"


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
    """The reading that `NvmlReading.as_json` wrote; raises ValueError for anything else."""
    found = json.loads(text)
    if not found:
        raise ValueError("no reading of NVML")
    return read(NvmlReading, found, "reading")
