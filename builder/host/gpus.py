"""The rules about GPUs: the driver, the devices, and whether there is code for them."""

from __future__ import annotations

from collections import Counter
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
from builder.host.records import NONE, HostGpu
from builder.host.verdict import NO, UNKNOWN, YES, Case, Finding, no, unknown, yes
from builder.model.contract import NeededCuda
from builder.model.versions import version_order

_COMPATIBLE_SINCE = 11  # the first major version of CUDA with minor-version compatibility
_HAND_OVER = "in a virtual machine or container, hand the GPU over to it"
_LOAD = f"load it (modprobe nvidia); {_HAND_OVER}"


def driver(case: Case) -> Finding | None:
    """The driver must be new enough for the image's CUDA."""
    rule, cuda, gpu = "driver", case.contract.cuda, case.host.gpu
    if cuda is None:
        return None
    if case.is_foreign:
        foreign = case.contract.architecture
        reason = f"NVIDIA's driver has no libraries for programs of {foreign} here"
        return no(rule, reason, "a host of the image's architecture: emulation reaches no GPU")
    if gpu.driver in (None, NONE) or gpu.fault:
        return _no_driver(case, f"CUDA {cuda.version} needs driver {cuda.driver} or newer")
    assert gpu.driver is not None
    if version_order(gpu.driver) < version_order(cuda.driver):
        return _too_old(case, cuda, gpu.driver)
    return yes(rule, _new_enough(cuda, gpu.driver))


def _no_driver(case: Case, needs: str) -> Finding:
    gpu, on_bus = case.host.gpu, case.host.gpu.on_bus
    if gpu.fault:
        fix = "restart the host, or unload and load the driver's modules, after an update of it"
        return no("driver", f"the driver's library does not answer: {gpu.fault}", fix)
    if gpu.driver is None:
        reason = f"{needs}, and the host's driver is not known"
        return unknown("driver", reason, "record it: cat /proc/driver/nvidia/version")
    if on_bus:
        reason = f"no driver is loaded, and {on_bus} GPUs are on the PCI bus; {needs}"
        return no("driver", reason, f"install NVIDIA's driver, or {_LOAD}")
    fix = "a host with a GPU of NVIDIA's; programs of the image that use none run all the same"
    if gpu.others:
        fix += f"; for GPUs of {' and '.join(gpu.others)} take an image that is built for them"
    has = f", and the host's GPUs are of {' and '.join(gpu.others)}" if gpu.others else ""
    return no("driver", f"no driver of NVIDIA's is loaded{has}; {needs}", fix)


def _new_enough(cuda: NeededCuda, found: str) -> str:
    shipped = cuda.shipped_driver
    if not shipped or version_order(found) >= version_order(shipped):
        return f"{found}; CUDA {cuda.version} needs {cuda.driver}"
    return (
        f"{found}; CUDA {cuda.version} runs on {cuda.driver} and newer by minor-version "
        f"compatibility ({shipped} came with it: what it added may fail with "
        "cudaErrorCallRequiresNewerDriver)"
    )


def _too_old(case: Case, cuda: NeededCuda, found: str) -> Finding:
    rule = "driver"
    reason = (
        f"{found} is older than {cuda.driver}, the least that runs CUDA {cuda.version}: every call "
        "fails with cudaErrorInsufficientDriver (35)"
    )
    if int(cuda.version.partition(".")[0]) < _COMPATIBLE_SINCE:
        reason += "; before CUDA 11, a release needs the driver of its own"
    fix = (
        f"{_older_cuda(case, found)}install NVIDIA's driver {cuda.driver} or newer on the host "
        "(its installer is one file, and needs no network)"
    )
    compat = _compat(case, cuda)
    if compat is None:
        return no(rule, reason, fix)
    more, is_possible = compat
    answer = unknown if is_possible else no
    return answer(rule, f"{reason}; {more}", fix)


def _compat(case: Case, cuda: NeededCuda) -> tuple[str, bool] | None:
    """What a cuda-compat package on the host changes, and whether it may help; None without one.

    NVIDIA says for each package with which driver branches it works; that table is not here.
    """
    wanted = version_order(cuda.version)
    fitting = [
        one
        for one in case.host.gpu.compat or ()
        if version_order(one)[:1] == wanted[:1] and version_order(one) >= wanted
    ]
    if not fitting:
        return None
    models = [one.model for one in case.host.gpu.devices or ()]
    if any(is_desktop(model) for model in models):
        return f"cuda-compat {fitting[-1]} is here, and works on no desktop GPU (error 804)", False
    kind = "data centre" if models and all(map(is_data_centre, models)) else "unknown"
    return (
        f"cuda-compat {fitting[-1]} is here, and may make up for it on these {kind} GPUs if NVIDIA "
        "lists this driver branch for it: bind it, put it first in LD_LIBRARY_PATH, and run "
        "the check gpu-compute"
    ), True


def _older_cuda(case: Case, found: str) -> str:
    """The newest CUDA that a driver runs, as something to take instead; empty if there is none."""
    capabilities = [capability_in(gpu) for gpu in case.host.gpu.devices or ()]
    fitting = [
        one.version
        for one in case.facts.cuda.values()
        if _runs(case, one, found) and all(_has_code(one, each) for each in capabilities)
    ]
    if not fitting:
        return ""
    newest = max(fitting, key=version_order)
    return (
        f"take an image with CUDA {newest} or older, which this driver runs (--cuda {newest}); or "
    )


def _runs(case: Case, release: CudaRelease, found: str | None) -> bool:
    """Return whether a driver runs a release; one that is not known may."""
    return (
        bool(release.driver)
        and case.contract.architecture in release.architectures
        and (found in (None, NONE) or version_order(release.driver) <= version_order(str(found)))
    )


def _has_code(release: CudaRelease, capability: int | None) -> bool:
    """Return whether nvcc of a release compiles for a GPU; for one that is not known it may."""
    codes = [int(one) for one in release.capabilities]
    return capability is None or not codes or code_for(capability, codes) is not None


def devices(case: Case) -> Finding | None:
    """There must be GPUs, and in MIG mode instances of them."""
    rule, gpu = "GPUs", case.host.gpu
    if case.contract.cuda is None or case.is_foreign:
        return None
    if gpu.devices is None:
        reason = "the image needs a GPU, and the host's are not known"
        return unknown(
            rule, reason, "record them: nvidia-smi --query-gpu=name,compute_cap --format=csv"
        )
    if not gpu.devices:
        on_bus = f", though {gpu.on_bus} are on the PCI bus" if gpu.on_bus else ""
        reason = f"the driver shows no GPU{on_bus}: cudaErrorNoDevice (100)"
        return no(rule, reason, f"a host with a GPU of NVIDIA's; {_shown(case)}")
    return _partitions(gpu.devices)


def _shown(case: Case) -> str:
    """What shows a GPU that may be there: its driver is loaded only where one is on the bus."""
    gpu = case.host.gpu
    return f"or {_LOAD}" if gpu.driver == NONE and gpu.on_bus else _HAND_OVER


def _partitions(found: tuple[HostGpu, ...]) -> Finding:
    """At least one must be seen: those in MIG mode are by their instances alone."""
    rule, seen = "GPUs", [_is_seen(gpu) for gpu in found]
    hidden = [n for n, one in enumerate(seen) if one is False]
    doubtful = [n for n, one in enumerate(seen) if one is None]
    if True not in seen and doubtful:
        reason = f"whether GPU {_listed(doubtful)} is in MIG mode, with instances, is not known"
        query = "nvidia-smi --query-gpu=mig.mode.current --format=csv"
        return unknown(rule, reason, f"record it: {query}")
    if True not in seen:
        reason = f"GPU {_listed(hidden)} is in MIG mode without an instance: no program sees it"
        return no(rule, reason, "make one (nvidia-smi mig -cgi 0 -C), or leave MIG mode (-mig 0)")
    models = Counter(one.model or "unknown model" for one in found)
    names = ", ".join(f"{number} x {model}" for model, number in models.items())
    parts = sum(one.mig_instances or 0 for one in found if one.mig)
    mig = f"; {parts} MIG instances: a process computes on one" if parts else ""
    without = f"; GPU {_listed(hidden)} is in MIG mode without an instance" if hidden else ""
    return yes(rule, f"{names}{mig}{without}")


def _is_seen(gpu: HostGpu) -> bool | None:
    """Return whether programs see a GPU, or a part of it; None if that is not known."""
    if gpu.mig:
        return None if gpu.mig_instances is None else gpu.mig_instances > 0
    capability = capability_in(gpu)
    may_be_divided = gpu.mig is None and (capability is None or capability in MIG)
    return None if may_be_divided else True


def capability_in(gpu: HostGpu) -> int | None:
    """A GPU's compute capability, by its model if need be."""
    return gpu.capability if gpu.capability is not None else capability_of(gpu.model)


def capabilities(case: Case) -> Finding | None:
    """The image must hold code for each GPU, or PTX that the driver compiles for it."""
    rule, cuda, found = "compute capability", case.contract.cuda, case.host.gpu.devices
    if cuda is None or case.is_foreign or not found:
        return None
    judged = {
        kind: _judged(case, cuda, found[numbers[0]], _named(found[numbers[0]], numbers))
        for kind, numbers in _kinds(found).items()
    }
    for answer in (NO, UNKNOWN):
        failing = [one for one in judged.values() if one.answer == answer]
        if failing:
            good = [kind for kind, one in judged.items() if one.answer == YES]
            return _with_others(failing[0], [n for kind in good for n in _kinds(found)[kind]])
    return yes(rule, "; ".join(one.reason for one in judged.values()))


Kind = tuple[str, int | None]


def _kinds(found: tuple[HostGpu, ...]) -> dict[Kind, list[int]]:
    """The numbers of GPUs by model and capability."""
    kinds: dict[Kind, list[int]] = {}
    for number, gpu in enumerate(found):
        kinds.setdefault((gpu.model, capability_in(gpu)), []).append(number)
    return kinds


def _named(gpu: HostGpu, numbers: list[int]) -> str:
    return f"GPU {_listed(numbers)} ({gpu.model or 'unknown model'})"


def _with_others(one: Finding, good: list[int]) -> Finding:
    """What fails; where other GPUs do not, they are what to use."""
    if not good:
        return one
    shown = ",".join(map(str, sorted(good)))
    # CUDA's own order is the fastest first, and not that of the driver's list
    variables = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={shown}"
    return replace(one, fix=f"show the image the others alone ({variables}); or {one.fix}")


def _judged(case: Case, cuda: NeededCuda, gpu: HostGpu, name: str) -> Finding:
    rule, capability = "compute capability", capability_in(gpu)
    if capability is None:
        reason = f"the compute capability of {name} is not known"
        return unknown(rule, reason, "record it: nvidia-smi --query-gpu=compute_cap --format=csv")
    shown = f"{name}: {dotted(capability)}"
    last, found = last_branch(capability), case.host.gpu.driver
    if last and found not in (None, NONE) and version_order(str(found))[0] > last:
        reason = f"{shown}, which driver {found} no longer drives: branch {last} is the last"
        fix = f"a driver of branch {last}; the image's CUDA may need an older one, too"
        return no(rule, reason, fix)
    if not cuda.capabilities:
        reason = f"{shown}, and the image does not say for which it holds code"
        return unknown(rule, reason, "run its check gpu-compute")
    if code := code_for(capability, [int(one) for one in cuda.capabilities]):
        return yes(rule, f"{shown}, and the image holds code for {dotted(code)}")
    return _by_ptx(case, cuda, capability, shown)


def _by_ptx(case: Case, cuda: NeededCuda, capability: int, shown: str) -> Finding:
    rule, found = "compute capability", case.host.gpu.driver
    holds = f"the image holds code for {', '.join(dotted(int(one)) for one in cuda.capabilities)}"
    if not cuda.ptx or int(cuda.ptx) > capability:
        reason = f"{shown}; {holds}: cudaErrorNoKernelImageForDevice (209)"
        return no(rule, reason, _with_code_for(case, capability))
    ptx = f"{holds}, and PTX of {dotted(int(cuda.ptx))}"
    if found is None or not cuda.shipped_driver:
        reason = f"{shown}; {ptx}, and whether the driver compiles it is not known"
        return unknown(rule, reason, "record the driver's version")
    branch = version_order(cuda.shipped_driver)[0]
    if found == NONE or version_order(found)[0] < branch:
        reason = (
            f"{shown}; {ptx}, which drivers of branch {branch} compile and {found} does not "
            "(cudaErrorUnsupportedPtxVersion, 222): minor-version compatibility ends there"
        )
        fix = f"driver {cuda.shipped_driver} or newer; or {_with_code_for(case, capability)}"
        return no(rule, reason, fix)
    return yes(rule, f"{shown}: {ptx}, which the driver compiles when a program first starts")


def _with_code_for(case: Case, capability: int) -> str:
    """Return which CUDA releases have code for a GPU, and run on the host's driver."""
    fitting = [
        version
        for version, one in case.facts.cuda.items()
        if _runs(case, one, case.host.gpu.driver) and _has_code(one, capability)
    ]
    if not fitting:
        which = f"code for {dotted(capability)} that this driver runs"
        return f"another driver, or a GPU of another generation: no CUDA has {which}"
    return f"take an image with CUDA {fitting[0]} to {fitting[-1]}, which have code for it"


def dotted(capability: int) -> str:
    """70 as NVIDIA lists it: 7.0."""
    return "{}.{}".format(*divmod(capability, 10))


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
