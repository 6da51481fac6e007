"""The rules about GPUs: the driver, the devices, and whether there is code for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from builder.facts.cuda import (
    MIG,
    capability_of,
    code_for,
    is_data_centre,
    is_desktop,
    last_branch,
)
from builder.host.records import NONE, HostGpu, dotted_capability
from builder.host.verdict import NO, UNKNOWN, YES, RuleAnswer, RuleCase, no, not_known, unknown, yes
from builder.model.contract import NeededCuda
from builder.model.versions import version_order

_COMPATIBLE_SINCE = 11  # the first major version of CUDA with minor-version compatibility
_HAND_OVER = "in a virtual machine or container, hand the GPU over to it"


def driver(case: RuleCase) -> RuleAnswer | None:
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


def _no_driver(case: RuleCase, needs: str) -> RuleAnswer:
    gpu, others = case.host.gpu, " and ".join(case.host.gpu.others or ())
    if gpu.fault:
        fix = "restart the host, or unload and load the driver's modules, after an update of it"
        return no(f"the driver's library does not answer: {gpu.fault}", fix)
    if gpu.driver is None:
        return not_known(f"{needs}, and the host's driver", "cat /proc/driver/nvidia/version")
    if gpu.on_bus:
        reason = f"no driver is loaded, and {gpu.on_bus} GPUs are on the PCI bus; {needs}"
        return no(reason, f"install NVIDIA's driver, or load it (modprobe nvidia); {_HAND_OVER}")
    fix = "a host with an NVIDIA GPU; programs that use no GPU run anyway"
    if others:
        fix += f"; for GPUs of {others} take an image that is built for them"
    has = f", and the host's GPUs are of {others}" if others else ""
    return no(f"NVIDIA's driver is not loaded{has}; {needs}", fix)


def _too_old(case: RuleCase, cuda: NeededCuda, version: str) -> RuleAnswer:
    reason = (
        f"{version} is older than {cuda.driver}, the least that runs CUDA {cuda.version}: every "
        "call fails with cudaErrorInsufficientDriver (35)"
    )
    if int(cuda.version.partition(".")[0]) < _COMPATIBLE_SINCE:
        reason += "; before CUDA 11, a release needs the driver of its own"
    fix = (
        f"{_older_cuda(case)}install NVIDIA's driver {cuda.driver} or newer on the host "
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


def _older_cuda(case: RuleCase) -> str:
    """Return the newest CUDA that the driver runs, as something to take; empty if there is none."""
    fitting = _fitting(case, [capability_in(gpu) for gpu in case.host.gpu.devices or ()])
    if not fitting:
        return ""
    newest = fitting[-1]
    return (
        f"take an image with CUDA {newest} or older, which this driver runs (--cuda {newest}); or "
    )


def _fitting(case: RuleCase, capabilities: Iterable[int | None]) -> list[str]:
    """Return the CUDA releases that have code for GPUs, and run on the host's driver.

    A driver or a GPU that is not known may do.
    """
    driver_version = case.host.gpu.driver
    is_known = driver_version not in (None, NONE)
    fitting = []
    for version, release in case.facts.cuda.items():
        if not release.driver or case.contract.architecture not in release.architectures:
            continue
        if is_known and version_order(str(driver_version)) < version_order(release.driver):
            continue
        codes = [int(code) for code in release.capabilities]
        if all(not codes or number is None or code_for(number, codes) for number in capabilities):
            fitting.append(version)
    return fitting


def devices(case: RuleCase) -> RuleAnswer | None:
    """There must be GPUs, and in MIG mode instances of them."""
    gpu = case.host.gpu
    if case.contract.cuda is None or case.is_foreign:
        return None
    if gpu.devices is None:
        query = "nvidia-smi --query-gpu=name,compute_cap --format=csv"
        return unknown(
            "the image needs a GPU, and the host's are not known", f"record them: {query}"
        )
    if not gpu.devices:
        on_bus = f", though {gpu.on_bus} are on the PCI bus" if gpu.on_bus else ""
        reason = f"the driver shows no GPU{on_bus}: cudaErrorNoDevice (100)"
        return no(reason, f"a host with an NVIDIA GPU; {_HAND_OVER}")
    # At least one must be visible: those in MIG mode only by their instances.
    visible = [_is_visible(device) for device in gpu.devices]
    hidden = _listed(number for number, one in enumerate(visible) if one is False)
    doubtful = _listed(number for number, one in enumerate(visible) if one is None)
    if True not in visible and doubtful:
        fact = f"whether GPU {doubtful} is in MIG mode, with instances,"
        return not_known(fact, "nvidia-smi --query-gpu=mig.mode.current --format=csv")
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


def capabilities(case: RuleCase) -> RuleAnswer | None:
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
        failing = next((one for one in answers.values() if one.answer == answer), None)
        if failing:
            fix = f"show the image the others alone ({variables}); or {failing.fix}"
            return replace(failing, fix=fix) if good else failing
    return yes("; ".join(one.reason for one in answers.values()))


def _capability(case: RuleCase, cuda: NeededCuda, capability: int | None, name: str) -> RuleAnswer:
    if capability is None:
        query = "nvidia-smi --query-gpu=compute_cap --format=csv"
        return not_known(f"the compute capability of {name}", query)
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


def _by_ptx(case: RuleCase, cuda: NeededCuda, capability: int, title: str) -> RuleAnswer:
    codes = ", ".join(dotted_capability(int(one)) for one in cuda.capabilities)
    holds, installed = f"the image holds code for {codes}", case.host.gpu.driver
    with_code = _with_code_for(case, capability)
    if not cuda.ptx or int(cuda.ptx) > capability:
        return no(f"{title}; {holds}: cudaErrorNoKernelImageForDevice (209)", with_code)
    ptx = f"{holds}, and PTX of {dotted_capability(int(cuda.ptx))}"
    if installed is None or not cuda.shipped_driver:
        return not_known(f"{title}; {ptx}, and whether the driver compiles it", "its version")
    branch = version_order(cuda.shipped_driver)[0]
    if installed == NONE or version_order(installed)[0] < branch:
        reason = (
            f"{title}; {ptx}, which drivers of branch {branch} compile and {installed} does not "
            "(cudaErrorUnsupportedPtxVersion, 222): minor-version compatibility ends there"
        )
        return no(reason, f"driver {cuda.shipped_driver} or newer; or {with_code}")
    return yes(f"{title}: {ptx}, which the driver compiles when a program first starts")


def _with_code_for(case: RuleCase, capability: int) -> str:
    """Return which CUDA releases have code for a GPU, and run on the host's driver."""
    fitting = _fitting(case, [capability])
    if not fitting:
        code = f"code for {dotted_capability(capability)} that this driver runs"
        return f"another driver, or a GPU of another generation: no CUDA has {code}"
    return f"take an image with CUDA {fitting[0]} to {fitting[-1]}, which have code for it"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
