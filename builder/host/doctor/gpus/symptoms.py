"""What is wrong with one GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from builder.facts import HOST
from builder.host.doctor.gpus.findings import SICK, UNKNOWN, WATCH, Finding
from builder.system.nvml import Gpu, NvmlReading

Symptom = tuple[str, str, str, str]  # key, verdict, text, remedy

RESET = "drain the node and reset the GPU (nvidia-smi -r), or reboot"
REPLACE = "drain the node, and have the GPU replaced"
NEAR_C = 5  # how far below its threshold a GPU is said to be hot

# nvmlClocksEventReasons: those that slow a GPU down because something is wrong. The others (idle,
# clocks that were set, the power limit under load, the slowest of a group) are as they should be.
THROTTLING = {
    0x08: "hardware slowdown: too hot, or its power supply brakes it",
    0x20: "software thermal slowdown: too hot",
    0x40: "hardware thermal slowdown: much too hot",
    0x80: "power brake: the power supply says that it gives too much",
}
_HOT = 0x20 | 0x40

# As many pages as a GPU can retire at all:
# https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/row-remapping.html
_MOST_PAGES = 64
_PROHIBITED, _EXCLUSIVE = 2, 3  # nvmlComputeMode_t

_FAULTS = {
    "NVML_ERROR_GPU_IS_LOST": (
        "it fell off the bus",
        "drain the node, look for Xid 79 in the kernel's log, reboot; if it comes again replace it",
    ),
    "NVML_ERROR_RESET_REQUIRED": ("it asks for a reset", RESET),
    "NVML_ERROR_INSUFFICIENT_POWER": ("a power cable is not plugged in", "plug it in"),
    "NVML_ERROR_IRQ_ISSUE": ("its interrupts do not arrive", "reboot; then look at the BIOS"),
    "NVML_ERROR_CORRUPTED_INFOROM": ("its InfoROM is corrupt", REPLACE),
}


def symptoms(gpu: Gpu, reading: NvmlReading) -> Iterator[Finding]:
    """All that is wrong with a GPU, the worst kinds first; nothing for a sound one."""
    for rule in _RULES:
        for key, verdict, text, remedy in rule(gpu):
            yield Finding(
                subject=f"GPU {gpu.index}",
                key=key,
                verdict=verdict,
                text=_placed(text, gpu, reading),
                matter=HOST,
                remedy=remedy,
            )


def _placed(text: str, gpu: Gpu, reading: NvmlReading) -> str:
    """With the GPU's place on the PCI bus; one that does not tell it is the one that is missing."""
    shown = {one.pci for one in reading.gpus}
    missing = [one for one in reading.pci_gpus if one not in shown]
    place = gpu.pci or " or ".join(missing)
    return f"{text} [{', '.join(filter(None, [gpu.name, place]))}]" if gpu.name or place else text


def _fault(gpu: Gpu) -> Iterator[Symptom]:
    if not gpu.fault:
        return
    call = f"({gpu.fault.name} in {gpu.fault.call})"
    if gpu.fault.name in _FAULTS:
        text, remedy = _FAULTS[gpu.fault.name]
        yield "reachable", SICK, f"{text} {call}", remedy
    else:
        text = f"it does not answer every question {call}"
        yield "reachable", UNKNOWN, text, "the kernel's log may say more (dmesg)"


def _memory(gpu: Gpu) -> Iterator[Symptom]:
    now, ever = gpu.ecc.volatile_uncorrected, gpu.ecc.aggregate_uncorrected
    if now:
        text = f"{now} uncorrectable memory errors since the driver was loaded: CUDA error 214"
        yield "ecc", SICK, text, RESET
    elif ever:
        text = f"{ever} uncorrectable memory errors in its life, none since the driver was loaded"
        yield "ecc", WATCH, text, "nothing yet; replace it when they become more"
    if gpu.ecc_enabled is False:
        yield "ecc", WATCH, "ECC is off: wrong memory goes unnoticed", "nvidia-smi -e 1, and reboot"


def _pages(gpu: Gpu) -> Iterator[Symptom]:
    pages, rows = gpu.retired_pages, gpu.remapped_rows
    if pages and pages.single_bit + pages.double_bit >= _MOST_PAGES:
        text = f"{pages.single_bit + pages.double_bit} pages of memory are retired: no more can be"
        yield "pages", SICK, text, REPLACE
    elif pages and pages.pending:
        yield "pages", WATCH, "a page of memory waits to be retired", RESET
    if rows and rows.failed:
        yield "rows", SICK, "a row of memory could not be replaced by a spare one", REPLACE
    elif rows and rows.pending:
        yield "rows", WATCH, "a row of memory waits to be replaced by a spare one", RESET


def _heat(gpu: Gpu) -> Iterator[Symptom]:
    reasons = gpu.throttling or 0
    cooling = "look at its fan, its air or water, and the room"
    for bit, text in THROTTLING.items():
        if reasons & bit:
            clock = (
                f"; {gpu.sm_clock_mhz} of {gpu.sm_clock_max_mhz} MHz" if gpu.sm_clock_mhz else ""
            )
            remedy = cooling if bit & _HOT else f"look at its power supply; {cooling}"
            yield "throttling", SICK, f"slowed down: {text}{clock}{_degrees(gpu)}", remedy
    if gpu.temperature_c is None or gpu.slowdown_c is None or reasons & _HOT:
        return
    if gpu.temperature_c >= gpu.slowdown_c:
        yield "temperature", SICK, f"too hot{_degrees(gpu)}", cooling
    elif gpu.temperature_c >= gpu.slowdown_c - NEAR_C:
        yield "temperature", WATCH, f"hot{_degrees(gpu)}", cooling


def _degrees(gpu: Gpu) -> str:
    if gpu.temperature_c is None:
        return ""
    limit = f" of {gpu.slowdown_c} °C" if gpu.slowdown_c else " °C"
    return f"; {gpu.temperature_c}{limit}"


def _modes(gpu: Gpu) -> Iterator[Symptom]:
    if gpu.compute_mode == _PROHIBITED:
        yield "mode", SICK, "closed to computing: CUDA ends with error 46", "nvidia-smi -c 0"
    elif gpu.compute_mode == _EXCLUSIVE:
        text = "for one process at a time: a second rank on it ends with error 46"
        yield "mode", WATCH, text, "nvidia-smi -c 0, or one rank a GPU, or MPS"
    if gpu.mig_enabled and gpu.mig_devices == 0:
        text = "MIG is on, and no device was made: CUDA ends with error 100"
        yield "mig", SICK, text, "nvidia-smi mig -cgi ... -C, or turn MIG off: nvidia-smi -mig 0"
    if gpu.persistence is False:
        text = "persistence is off: the first call of each program takes seconds"
        yield "persistence", WATCH, text, "systemctl enable --now nvidia-persistenced"


def _links(gpu: Gpu) -> Iterator[Symptom]:
    if gpu.nvlinks and gpu.nvlinks_down:
        text = f"{gpu.nvlinks_down} of {gpu.nvlinks + gpu.nvlinks_down} NVLinks are down"
        yield "nvlink", WATCH, text, "nvidia-smi nvlink -s and -e; reset the GPUs"
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        text = f"PCIe is {gpu.pcie_width} lanes wide, not {gpu.pcie_width_max}: copies are slow"
        yield "pcie", WATCH, text, "nothing in a slot that is so; else have it seated anew"


_RULES: tuple[Callable[[Gpu], Iterator[Symptom]], ...] = (
    _fault,
    _memory,
    _pages,
    _heat,
    _modes,
    _links,
)
