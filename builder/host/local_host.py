"""This machine as a host: facts from its kernel, driver and programs. Nothing is changed."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from builder.host.doctor import SystemRoots
from builder.host.doctor.emulation import handlers_of
from builder.host.doctor.machine import is_open, namespaces_problem, restricted_namespaces
from builder.host.doctor.programs import Programs
from builder.host.programs import mpis, runtimes, slurm
from builder.host.records import NONE, Host, HostCpu, HostGpu, HostGpus
from builder.model.architectures import ARCHITECTURES, power_levels
from builder.system import nvml
from builder.system.descendants import text_of
from builder.system.process import Processes

_COMPAT = re.compile(r"cuda-(\d+\.\d+)")
_CDI = ("etc/cdi", "var/run/cdi")
_FEATURES = ("flags", "Features")  # on x86_64, on aarch64
_MODELS = ("model name", "cpu")
_GPU_CLASSES = ("0x03", "0x12")  # a display or 3D controller, a processing accelerator
_MAKERS = {"0x1002": "AMD", "0x8086": "Intel"}  # by their PCI number


def this_host(
    processes: Processes,
    *,
    search_path: str,
    roots: SystemRoots | None = None,
    ask: Callable[[Processes], nvml.NvmlReading] = nvml.ask,
    variables: Mapping[str, str] | None = None,
) -> Host:
    """Examine this machine and its MPIs, Slurm and container runtimes; see `this_machine`.

    `variables` are environment variables, by default those of this process; they show some modules.
    """
    variables = os.environ if variables is None else variables
    roots, programs = roots or SystemRoots(), Programs(processes, search_path)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(mpis, programs, variables), pool.submit(slurm, programs)
        starting = pool.submit(runtimes, programs, roots)
        machine = this_machine(processes, search_path=search_path, roots=roots, ask=ask)
        return replace(
            machine, mpi=asked[0].result(), slurm=asked[1].result(), runtimes=starting.result()
        )


def this_machine(
    processes: Processes,
    *,
    search_path: str,
    roots: SystemRoots | None = None,
    ask: Callable[[Processes], nvml.NvmlReading] = nvml.ask,
) -> Host:
    """Examine this machine. `roots` are its system folders, `ask` queries NVML.

    Programs that start containers or ranks are not run, which may take a second.
    """
    roots, programs = roots or SystemRoots(), Programs(processes, search_path)
    libc, libc_version = platform.libc_ver()  # of this interpreter, which uses the host's libc
    return Host(
        name=platform.node(),
        architecture=platform.machine() or None,
        kernel=platform.release() or None,
        glibc=libc_version if libc == "glibc" else None,
        cpu=cpu_of(text_of(roots.proc / "cpuinfo")),
        gpu=_gpus(roots, programs, lambda: ask(processes)),
        page_size=os.sysconf("SC_PAGE_SIZE"),
        user_namespaces=not namespaces_problem(roots)[0],
        restricted_namespaces=restricted_namespaces(roots),
        fuse=is_open(roots.dev / "fuse"),
        emulators=_emulators(roots),
    )


def cpu_of(cpuinfo: str) -> HostCpu:
    """Return the first processor in a /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    model = next((fields[key] for key in _MODELS if key in fields), "")
    listed = next((fields[key].split() for key in _FEATURES if key in fields), [])
    return HostCpu(model=model, features=tuple(sorted(listed)) or power_levels(model) or None)


def _gpus(roots: SystemRoots, programs: Programs, ask: Callable[[], nvml.NvmlReading]) -> HostGpus:
    sys = roots.top / "sys"
    gpus = HostGpus(
        driver=(nvml.kernel_driver(roots.proc) or None) if nvml.is_loaded(roots.proc) else NONE,
        on_bus=len(nvml.pci_gpus(sys)) if (sys / "bus/pci/devices").is_dir() else None,
        others=_others(sys / "bus/pci/devices"),
        compat=_compat(roots.top / "usr/local"),
        toolkit=programs.find("nvidia-container-cli") is not None,
        cdi=any(list((roots.top / folder).glob("*nvidia*")) for folder in _CDI),
    )
    if gpus.driver == NONE:
        return replace(gpus, devices=())
    reading = ask()
    if reading.fault and reading.fault.name == nvml.LIBRARY_NOT_FOUND:
        models = filter(None, nvml.gpu_models(roots.proc))
        return replace(gpus, devices=tuple(HostGpu(model=model) for model in models) or None)
    if reading.fault:
        return replace(gpus, fault=f"{reading.fault.text} ({reading.fault.name})".strip())
    return replace(gpus, devices=tuple(_device(gpu) for gpu in reading.gpus))


def _device(gpu: nvml.Gpu) -> HostGpu:
    """Return the facts about a GPU that matter to an image; without MIG support, MIG is off."""
    capability = gpu.compute_capability.replace(".", "")
    return HostGpu(
        model=gpu.name,
        capability=int(capability) if capability else None,
        mig=gpu.mig_enabled if gpu.fault else bool(gpu.mig_enabled),
        mig_instances=gpu.mig_devices,
    )


def _others(devices: Path) -> tuple[str, ...] | None:
    """Return the makers of non-NVIDIA GPUs on the PCI bus; None if the bus is not visible."""
    if not devices.is_dir():
        return None
    makers = {
        _MAKERS.get(text_of(device / "vendor").strip(), "")
        for device in devices.iterdir()
        if text_of(device / "class").startswith(_GPU_CLASSES)
    }
    return tuple(sorted(makers - {""}))


def _compat(folder: Path) -> tuple[str, ...]:
    """Return the CUDA releases of the installed cuda-compat packages."""
    matches = [_COMPAT.search(str(file)) for file in folder.glob("cuda-*/compat/libcuda.so.1")]
    return tuple(sorted({match[1] for match in matches if match}))


def _emulators(roots: SystemRoots) -> tuple[str, ...] | None:
    """Return the architectures that binfmt_misc emulates, even in containers."""
    folder = roots.proc / "sys/fs/binfmt_misc"
    if not (folder / "status").exists():
        return None
    handlers = [one for one in handlers_of(folder) if one.enabled and "F" in one.flags]
    return tuple(
        name
        for name, arch in ARCHITECTURES.items()
        if any(handler.serves(arch) for handler in handlers)
    )
