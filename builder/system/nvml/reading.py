"""A whole reading: the host, each GPU, and the ways between them."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from builder.system.nvml.gpu import read_gpu
from builder.system.nvml.library import LIBRARY, Failed, Nvml
from builder.system.nvml.links import read_links
from builder.system.nvml.values import LIBRARY_NOT_FOUND, NvmlFault, NvmlReading

_VERSION = re.compile(r"Kernel Module\D*?\s(?:for \S+\s+)?(?P<version>\d+(?:\.\d+)+)")
_MODEL = re.compile(r"^Model:\s*(?P<model>.+)$", re.MULTILINE)
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # PCI vendor and class: VGA and 3D controllers are 0x03....


def read(
    *, library: str = LIBRARY, proc: Path = Path("/proc"), sys: Path = Path("/sys")
) -> NvmlReading:
    """Read this host's driver and GPUs. It raises nothing: what failed is in the value.

    A GPU that is lost or asks for a reset has an entry with its fault and what it still says.
    """
    host = NvmlReading(kernel_driver=kernel_driver(proc), pci_gpus=pci_gpus(sys))
    try:
        nvml = Nvml(library)
    except OSError as error:
        fault = NvmlFault(call="dlopen", number=12, name=LIBRARY_NOT_FOUND, text=str(error))
        return dataclasses.replace(host, fault=fault)
    host = dataclasses.replace(host, library=_loaded(library, proc))
    try:
        nvml.call("nvmlInit_v2")
    except Failed as failed:
        return dataclasses.replace(host, fault=failed.fault)
    try:
        return _of_host(nvml, host)
    finally:
        with contextlib.suppress(Failed):
            nvml.call("nvmlShutdown")


def kernel_driver(proc: Path = Path("/proc")) -> str:
    """The version of NVIDIA's loaded kernel module, such as 535.104.05; empty without one."""
    found = _VERSION.search(_text(proc / "driver/nvidia/version"))
    return found["version"] if found else ""


def gpu_models(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """The models of the GPUs that the kernel module has; empty for one that tells none."""
    files = sorted((proc / "driver/nvidia/gpus").glob("*/information"))
    found = [_MODEL.search(_text(file)) for file in files]
    return tuple(one["model"].strip() if one else "" for one in found)


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def pci_gpus(sys: Path = Path("/sys")) -> tuple[str, ...]:
    """The addresses on the PCI bus at which NVIDIA's GPUs are, with or without a driver."""
    return tuple(_pci_gpus(sys))


def _pci_gpus(sys: Path) -> Iterator[str]:
    for folder in sorted((sys / "bus/pci/devices").glob("*")):
        display = _text(folder / "class").startswith(_DISPLAY)
        if display and _text(folder / "vendor").strip() == _NVIDIA:
            yield folder.name


def _loaded(library: str, proc: Path) -> str:
    """The file that the loader took, from this process's memory map."""
    for line in _text(proc / "self/maps").splitlines():
        path = line.partition("/")[2]
        if Path(path).name.startswith("libnvidia-ml.so"):
            return f"/{path}"
    return library


def _of_host(nvml: Nvml, host: NvmlReading) -> NvmlReading:
    try:
        count = ctypes.c_uint()
        nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        made = [read_gpu(nvml, index) for index in range(count.value)]
        return dataclasses.replace(
            host,
            driver=nvml.text("nvmlSystemGetDriverVersion"),
            cuda=_cuda(nvml),
            gpus=tuple(gpu for gpu, _ in made),
            links=tuple(read_links(nvml, made)),
        )
    except Failed as failed:
        return dataclasses.replace(host, fault=failed.fault)


def _cuda(nvml: Nvml) -> str:
    """The second call is for drivers older than 440."""
    for name in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        with contextlib.suppress(Failed):
            if number := nvml.number(name):
                return f"{number // 1000}.{number % 1000 // 10}"
    return ""
