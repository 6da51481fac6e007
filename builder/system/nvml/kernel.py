"""What the kernel says of NVIDIA's driver and GPUs, without its library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_VERSION = re.compile(r"Kernel Module\D*?\s(?:for \S+\s+)?(?P<version>\d+(?:\.\d+)+)")
_MODEL = re.compile(r"^Model:\s*(?P<model>.+)$", re.MULTILINE)
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI vendor and class: VGA and 3D controllers are 0x03....


def kernel_driver(proc: Path = Path("/proc")) -> str:
    """The version of NVIDIA's loaded kernel module, such as 535.104.05; empty without one."""
    match = _VERSION.search(_text(proc / "driver/nvidia/version"))
    return match["version"] if match else ""


def gpu_models(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """The models of the GPUs that the kernel module has; empty for one that tells none."""
    files = sorted((proc / "driver/nvidia/gpus").glob("*/information"))
    matches = [_MODEL.search(_text(file)) for file in files]
    return tuple(match["model"].strip() if match else "" for match in matches)


def pci_gpus(sys: Path = Path("/sys")) -> tuple[str, ...]:
    """The addresses on the PCI bus at which NVIDIA's GPUs are, with or without a driver."""
    return tuple(_pci_gpus(sys))


def loaded_library(library: str, proc: Path) -> str:
    """The file that the loader took for a library, from this process's memory map."""
    for line in _text(proc / "self/maps").splitlines():
        path = line.partition("/")[2]
        if Path(path).name.startswith("libnvidia-ml.so"):
            return f"/{path}"
    return library


def _pci_gpus(sys: Path) -> Iterator[str]:
    for folder in sorted((sys / "bus/pci/devices").glob("*")):
        display = _text(folder / "class").startswith(_DISPLAY)
        if display and _text(folder / "vendor").strip() == _NVIDIA:
            yield folder.name


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
