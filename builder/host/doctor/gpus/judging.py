"""From a reading of NVML to findings: the driver, each GPU, and the images that run here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from builder.facts import HOST, IMAGE, CudaRelease
from builder.facts.cuda import code_for
from builder.host.doctor.gpus.findings import SICK, SOUND, THE_HOST, UNKNOWN, WATCH, Finding
from builder.host.doctor.gpus.symptoms import symptoms
from builder.model.versions import version_order
from builder.system.nvml import Gpu, NvmlFault, NvmlReading

_INSTALL = "install NVIDIA's driver: the kernel module and libnvidia-ml.so.1 of one version"
_RELOAD = "reboot, or end what uses the GPUs and load the modules anew (rmmod, modprobe nvidia)"

# What it means that NVML does not begin, by the error's name: verdict, text, remedy.
_BEGINNINGS = {
    "NVML_ERROR_DRIVER_NOT_LOADED": (
        SICK,
        "the driver's library is there, and its kernel module is not loaded",
        "modprobe nvidia; the kernel's log says why it was not loaded (dmesg)",
    ),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        SICK,
        "the driver's library is not of the loaded kernel module's version: CUDA error 803",
        _RELOAD,
    ),
    "NVML_ERROR_NO_PERMISSION": (
        UNKNOWN,
        "this user may not ask the driver",
        "ls -l /dev/nvidia*; in a container or a job, have the GPUs handed over",
    ),
    "NVML_ERROR_OPERATING_SYSTEM": (
        UNKNOWN,
        "the system keeps the devices from this process, as a job's cgroup does",
        "ask within a job that was given the GPUs",
    ),
}


def judged(reading: NvmlReading, releases: Mapping[str, CudaRelease]) -> list[Finding]:
    """Everything that a reading gives to say; `releases` are the CUDA releases by version."""
    if reading.fault and not reading.gpus:
        return [_without_gpus(reading, reading.fault)]
    findings = list(_of_host(reading))
    for gpu in reading.gpus:
        found = list(symptoms(gpu, reading))
        findings += found or [_sound(gpu)]
    return [*findings, *_images(reading, releases)]


def _without_gpus(reading: NvmlReading, fault: NvmlFault) -> Finding:
    if fault.name in _BEGINNINGS:
        verdict, text, remedy = _BEGINNINGS[fault.name]
        version = f"; the module is {reading.kernel_driver}" if reading.kernel_driver else ""
        return _host("driver", verdict, f"{text}{version} ({fault.name})", remedy)
    if fault.call != "dlopen":
        text = f"the driver does not answer: {fault.call}: {fault.name}, {fault.text}"
        remedy = "look for NVRM and Xid in the kernel's log (dmesg); drain the node and reboot"
        return _host("driver", SICK, text, remedy)
    if reading.kernel_driver:
        text = f"driver {reading.kernel_driver} is loaded, and its library is not: {fault.text}"
        return _host("driver", SICK, text, _INSTALL)
    if reading.pci_gpus:
        count = len(reading.pci_gpus)
        text = f"no driver for the {count} of NVIDIA's GPUs on the PCI bus"
        return _host("driver", SICK, text, _INSTALL)
    return _host("driver", UNKNOWN, "no GPU of NVIDIA's and no driver for one", "")


def _of_host(reading: NvmlReading) -> Iterator[Finding]:
    if reading.fault:
        text = f"{reading.fault.call}: {reading.fault.name}"
        yield _host("driver", UNKNOWN, text, "the kernel's log may say more (dmesg)")
    ours, kernels = reading.driver, reading.kernel_driver
    if ours and kernels and ours != kernels:
        text = f"the driver's library is of {ours}, the kernel module of {kernels}"
        yield _host("driver", SICK, f"{text}: CUDA ends with error 803", _RELOAD)
    elif not reading.gpus:
        yield _host("driver", SICK, "the driver answers, and shows no GPU", "lspci -d 10de:; dmesg")
    else:
        text = (
            f"driver {reading.driver_version}, for CUDA up to {reading.cuda or 'it does not say'}"
        )
        yield _host("driver", SOUND, text, "")
    yield from _unseen(reading)


def _unseen(reading: NvmlReading) -> Iterator[Finding]:
    """GPUs on the PCI bus that the driver does not show, besides those that it calls lost."""
    missing = [one for one in reading.pci_gpus if one not in {gpu.pci for gpu in reading.gpus}]
    lost = [gpu for gpu in reading.gpus if not gpu.pci]
    if len(missing) > len(lost):
        text = f"on the PCI bus, and not shown by the driver: {' '.join(missing)}"
        remedy = "nothing where a job or container was given some of them; else dmesg | grep NVRM"
        yield _host("count", WATCH, text, remedy)


def _sound(gpu: Gpu) -> Finding:
    """What was looked at and is in order; what the GPU does not tell is not claimed."""
    said = [gpu.name]
    if gpu.temperature_c is not None:
        said.append(f"{gpu.temperature_c} °C")
    if gpu.ecc.volatile_uncorrected == 0:
        said.append("no uncorrectable memory error")
    if gpu.throttling is not None:
        said.append("not slowed down")
    return Finding(
        subject=f"GPU {gpu.index}", key="health", verdict=SOUND, text=", ".join(said), matter=HOST
    )


def _images(reading: NvmlReading, releases: Mapping[str, CudaRelease]) -> Iterator[Finding]:
    """Which images run here: that is for the choice of an image, and no fault of the host."""
    capabilities = sorted({gpu.compute_capability for gpu in reading.gpus} - {""})
    for capability in capabilities:
        fitting = [
            version
            for version, release in releases.items()
            if _runs(release, reading, capability.replace(".", ""))
        ]
        text = f"images with CUDA {', '.join(fitting)} run on compute capability {capability}"
        remedy = "an image of one of these, or another driver, for what an image with another needs"
        if not fitting:
            text = f"no CUDA known here fits compute capability {capability} and this driver"
        yield Finding(
            subject=THE_HOST, key="images", verdict=SOUND, text=text, matter=IMAGE, remedy=remedy
        )


def _runs(release: CudaRelease, reading: NvmlReading, capability: str) -> bool:
    """Return whether code of all of a release's capabilities, with PTX of the last, runs on a GPU.

    PTX is compiled for any newer GPU, by a driver that is not older than its release. Minor-version
    compatibility covers the rest:
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    if version_order(reading.driver_version) < version_order(release.driver):
        return False
    ours = int(capability)
    theirs = [int(one) for one in release.capabilities]
    if code_for(ours, theirs):
        return True
    compiles = version_order(reading.cuda) >= version_order(release.version)
    return bool(theirs) and max(theirs) < ours and compiles


def _host(key: str, verdict: str, text: str, remedy: str) -> Finding:
    return Finding(
        subject=THE_HOST, key=key, verdict=verdict, text=text, matter=HOST, remedy=remedy
    )
