"""The rules about GPUs: the driver, the devices, and whether there is code for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from builder.facts import CudaRelease
from builder.facts.cuda import (
    MIG,
    capability_of,
    code_for,
    is_data_centre,
    is_desktop,
    last_branch,
)
from builder.host.records import NONE, HostGpu, dotted_capability
from builder.host.verdict import NO, UNKNOWN, YES, Answer, Case, no, unknown, yes
from builder.model.contract import NeededCuda
from builder.model.versions import version_order

_COMPATIBLE_SINCE = 11  # the first major version of CUDA with minor-version compatibility
_HAND_OVER = "in a virtual machine or container, hand the GPU over to it"
_LOAD = f"load it (modprobe nvidia); {_HAND_OVER}"


def driver(case: Case) -> Answer | None:
    """The driver must be new enough for the image's CUDA."""
    cuda, gpu = case.contract.cuda, case.host.gpu
    if cuda is None:
        return None
    if case.is_foreign:
        foreign = case.contract.architecture
        reason = f"NVIDIA's driver has no libraries for programs of {foreign} here"
        return no(reason, "a host of the image's architecture: emulation reaches no GPU")
    if gpu.driver in (None, NONE) or gpu.fault:
        return _no_driver(case, f"CUDA {cuda.version} needs driver {cuda.driver} or newer")
    assert gpu.driver is not None
    if version_order(gpu.driver) < version_order(cuda.driver):
        return _too_old(case, cuda, gpu.driver)
    shipped = cuda.shipped_driver
    if not shipped or version_order(gpu.driver) >= version_order(shipped):
        return yes(f"{gpu.driver}; CUDA {cuda.version} needs {cuda.driver}")
    return yes(
        f"{gpu.driver}; CUDA {cuda.version} runs on {cuda.driver} and newer by minor-version "
        f"compatibility ({shipped} came with it: what it added may fail with "
        "cudaErrorCallRequiresNewerDriver)"
    )


def _no_driver(case: Case, needs: str) -> Answer:
    gpu, others = case.host.gpu, " and ".join(case.host.gpu.others or ())
    if gpu.fault:
        fix = "restart the host, or unload and load the driver's modules, after an update of it"
        return no(f"the driver's library does not answer: {gpu.fault}", fix)
    if gpu.driver is None:
        reason = f"{needs}, and the host's driver is not known"
        return unknown(reason, "record it: cat /proc/driver/nvidia/version")
    if gpu.on_bus:
        reason = f"no driver is loaded, and {gpu.on_bus} GPUs are on the PCI bus; {needs}"
        return no(reason, f"install NVIDIA's driver, or {_LOAD}")
    fix = "a host with a GPU of NVIDIA's; programs of the image that use none run all the same"
    if others:
        fix += f"; for GPUs of {others} take an image that is built for them"
    has = f", and the host's GPUs are of {others}" if others else ""
    return no(f"no driver of NVIDIA's is loaded{has}; {needs}", fix)


def _too_old(case: Case, cuda: NeededCuda, version: str) -> Answer:
    reason = (
        f"{version} is older than {cuda.driver}, the least that runs CUDA {cuda.version}: every "
        "call fails with cudaErrorInsufficientDriver (35)"
    )
    if int(cuda.version.partition(".")[0]) < _COMPATIBLE_SINCE:
        reason += "; before CUDA 11, a release needs the driver of its own"
    fix = (
        f"{_older_cuda(case, version)}install NVIDIA's driver {cuda.driver} or newer on the host "
        "(its installer is one file, and needs no network)"
    )
    # NVIDIA says for each cuda-compat package with which driver branches it works: no table here.
    needed = version_order(cuda.version)
    compat = [
        one
        for one in case.host.gpu.compat or ()
        if version_order(one)[:1] == needed[:1] and version_order(one) >= needed
    ]
    if not compat:
        return no(reason, fix)
    reason += f"; cuda-compat {compat[-1]} is here, and "
    models = [gpu.model for gpu in case.host.gpu.devices or ()]
    if any(is_desktop(model) for model in models):
        return no(f"{reason}works on no desktop GPU (error 804)", fix)
    kind = "data centre" if models and all(map(is_data_centre, models)) else "unknown"
    reason += (
        f"may make up for it on these {kind} GPUs if NVIDIA lists this driver branch for it: bind "
        "it, put it first in LD_LIBRARY_PATH, and run the check gpu-compute"
    )
    return unknown(reason, fix)


def _older_cuda(case: Case, driver_version: str) -> str:
    """Return the newest CUDA that a driver runs, as something to take; empty if there is none."""
    capabilities = [capability_in(gpu) for gpu in case.host.gpu.devices or ()]
    fitting = [
        release.version
        for release in case.facts.cuda.values()
        if _runs(case, release, driver_version)
        if all(_has_code(release, capability) for capability in capabilities)
    ]
    newest = max(fitting, key=version_order, default="")
    text = (
        f"take an image with CUDA {newest} or older, which this driver runs (--cuda {newest}); or "
    )
    return text if newest else ""


def _runs(case: Case, release: CudaRelease, driver_version: str | None) -> bool:
    """Return whether a driver runs a release; one that is not known may."""
    return (
        bool(release.driver)
        and case.contract.architecture in release.architectures
        and not _is_older(driver_version, release.driver)
    )


def _is_older(driver_version: str | None, other: str) -> bool:
    """Return whether a driver is known, and older than another version."""
    if driver_version is None or driver_version == NONE:
        return False
    return version_order(driver_version) < version_order(other)


def _has_code(release: CudaRelease, capability: int | None) -> bool:
    """Return whether nvcc of a release compiles for a GPU; for one that is not known it may."""
    codes = [int(one) for one in release.capabilities]
    return capability is None or not codes or code_for(capability, codes) is not None


def devices(case: Case) -> Answer | None:
    """There must be GPUs, and in MIG mode instances of them."""
    gpu = case.host.gpu
    if case.contract.cuda is None or case.is_foreign:
        return None
    if gpu.devices is None:
        fix = "record them: nvidia-smi --query-gpu=name,compute_cap --format=csv"
        return unknown("the image needs a GPU, and the host's are not known", fix)
    if not gpu.devices:
        on_bus = f", though {gpu.on_bus} are on the PCI bus" if gpu.on_bus else ""
        # A driver is loaded only if a GPU is on the bus.
        way = f"or {_LOAD}" if gpu.driver == NONE and gpu.on_bus else _HAND_OVER
        reason = f"the driver shows no GPU{on_bus}: cudaErrorNoDevice (100)"
        return no(reason, f"a host with a GPU of NVIDIA's; {way}")
    # At least one must be visible: those in MIG mode only by their instances.
    visible = [_is_visible(device) for device in gpu.devices]
    hidden = _listed(number for number, one in enumerate(visible) if one is False)
    doubtful = _listed(number for number, one in enumerate(visible) if one is None)
    if True not in visible and doubtful:
        reason = f"whether GPU {doubtful} is in MIG mode, with instances, is not known"
        return unknown(reason, "record it: nvidia-smi --query-gpu=mig.mode.current --format=csv")
    without = f"GPU {hidden} is in MIG mode without an instance"
    if True not in visible:
        fix = "make one (nvidia-smi mig -cgi 0 -C), or leave MIG mode (-mig 0)"
        return no(f"{without}: no program sees it", fix)
    models = Counter(device.model or "unknown model" for device in gpu.devices)
    texts = [", ".join(f"{number} x {model}" for model, number in models.items())]
    if instances := sum(device.mig_instances or 0 for device in gpu.devices if device.mig):
        texts.append(f"{instances} MIG instances: a process computes on one")
    return yes("; ".join([*texts, without] if hidden else texts))


def _is_visible(gpu: HostGpu) -> bool | None:
    """Return whether programs see a GPU, or a part of it; None if that is not known."""
    if gpu.mig:
        return None if gpu.mig_instances is None else gpu.mig_instances > 0
    capability = capability_in(gpu)
    may_be_divided = gpu.mig is None and (capability is None or capability in MIG)
    return None if may_be_divided else True


def capability_in(gpu: HostGpu) -> int | None:
    """Return a GPU's compute capability, by its model if need be."""
    return gpu.capability if gpu.capability is not None else capability_of(gpu.model)


def capabilities(case: Case) -> Answer | None:
    """The image must hold code for each GPU, or PTX that the driver compiles for it."""
    cuda, gpus = case.contract.cuda, case.host.gpu.devices
    if cuda is None or case.is_foreign or not gpus:
        return None
    kinds: dict[tuple[str, int | None], list[int]] = {}
    for number, gpu in enumerate(gpus):
        kinds.setdefault((gpu.model, capability_in(gpu)), []).append(number)
    answers = {}
    for (model, capability), numbers in kinds.items():
        name = f"GPU {_listed(numbers)} ({model or 'unknown model'})"
        answers[tuple(numbers)] = _capability(case, cuda, capability, name)
    good = sorted(n for numbers, one in answers.items() if one.answer == YES for n in numbers)
    # CUDA's own order is the fastest first, and not that of the driver's list
    variables = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={','.join(map(str, good))}"
    for answer in (NO, UNKNOWN):
        for one in answers.values():
            if one.answer == answer:
                fix = f"show the image the others alone ({variables}); or {one.fix}"
                return replace(one, fix=fix) if good else one
    return yes("; ".join(one.reason for one in answers.values()))


def _capability(case: Case, cuda: NeededCuda, capability: int | None, name: str) -> Answer:
    if capability is None:
        reason = f"the compute capability of {name} is not known"
        return unknown(reason, "record it: nvidia-smi --query-gpu=compute_cap --format=csv")
    title = f"{name}: {dotted_capability(capability)}"
    last, installed = last_branch(capability), case.host.gpu.driver
    if last and installed not in (None, NONE) and version_order(str(installed))[0] > last:
        reason = f"{title}, which driver {installed} no longer drives: branch {last} is the last"
        return no(reason, f"a driver of branch {last}; the image's CUDA may need an older one, too")
    if not cuda.capabilities:
        reason = f"{title}, and the image does not say for which it holds code"
        return unknown(reason, "run its check gpu-compute")
    if code := code_for(capability, [int(one) for one in cuda.capabilities]):
        return yes(f"{title}, and the image holds code for {dotted_capability(code)}")
    return _by_ptx(case, cuda, capability, title)


def _by_ptx(case: Case, cuda: NeededCuda, capability: int, title: str) -> Answer:
    codes = ", ".join(dotted_capability(int(one)) for one in cuda.capabilities)
    holds, installed = f"the image holds code for {codes}", case.host.gpu.driver
    with_code = _with_code_for(case, capability)
    if not cuda.ptx or int(cuda.ptx) > capability:
        return no(f"{title}; {holds}: cudaErrorNoKernelImageForDevice (209)", with_code)
    ptx = f"{holds}, and PTX of {dotted_capability(int(cuda.ptx))}"
    if installed is None or not cuda.shipped_driver:
        reason = f"{title}; {ptx}, and whether the driver compiles it is not known"
        return unknown(reason, "record the driver's version")
    branch = version_order(cuda.shipped_driver)[0]
    if installed == NONE or version_order(installed)[0] < branch:
        reason = (
            f"{title}; {ptx}, which drivers of branch {branch} compile and {installed} does not "
            "(cudaErrorUnsupportedPtxVersion, 222): minor-version compatibility ends there"
        )
        return no(reason, f"driver {cuda.shipped_driver} or newer; or {with_code}")
    return yes(f"{title}: {ptx}, which the driver compiles when a program first starts")


def _with_code_for(case: Case, capability: int) -> str:
    """Return which CUDA releases have code for a GPU, and run on the host's driver."""
    fitting = [
        version
        for version, release in case.facts.cuda.items()
        if _runs(case, release, case.host.gpu.driver) and _has_code(release, capability)
    ]
    if not fitting:
        code = f"code for {dotted_capability(capability)} that this driver runs"
        return f"another driver, or a GPU of another generation: no CUDA has {code}"
    return f"take an image with CUDA {fitting[0]} to {fitting[-1]}, which have code for it"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
