"""The rules for GPUs: the driver, the devices, and whether the image has code for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from builder.facts import CudaRelease
from builder.facts.cuda import MIG, capability_of, code_for, is_desktop, last_branch
from builder.host.records import NONE, HostGpu, dotted_capability
from builder.host.verdict import NO, UNKNOWN, YES, RuleAnswer, RuleCase
from builder.model.contract import NeededCuda
from builder.model.versions import version_order

_COMPATIBLE_SINCE = 11  # the first major version of CUDA with minor-version compatibility


def driver(case: RuleCase) -> RuleAnswer | None:
    """Answer whether the driver is new enough for the image's CUDA."""
    cuda, gpu = case.contract.cuda, case.host.gpu
    if cuda is None:
        return None
    if case.is_foreign:
        return case.no("driver-foreign")
    if gpu.driver is None or gpu.driver == NONE or gpu.fault:
        return _no_driver(case)
    if version_order(gpu.driver) < version_order(cuda.driver):
        return _too_old(case, cuda)
    shipped = cuda.shipped_driver
    if shipped and version_order(gpu.driver) < version_order(shipped):
        return case.yes("driver-compatible")
    return case.yes("driver-fits")


def _no_driver(case: RuleCase) -> RuleAnswer:
    gpu = case.host.gpu
    if gpu.fault:
        return case.no("driver-fault")
    if gpu.driver is None:
        return case.unknown("driver-unknown")
    if gpu.on_bus:
        return case.no("driver-not-loaded")
    if gpu.others:
        return case.no("driver-of-others", others=" and ".join(gpu.others))
    return case.no("driver-none")


def _too_old(case: RuleCase, cuda: NeededCuda) -> RuleAnswer:
    older, needed = _older_cuda(case), version_order(cuda.version)
    # NVIDIA lists the driver branches for each cuda-compat package; they are not copied here.
    compat = [
        release
        for release in case.host.gpu.compat or ()
        if version_order(release)[:1] == needed[:1] and version_order(release) >= needed
    ]
    if not compat:
        is_before = needed[0] < _COMPATIBLE_SINCE
        return case.no("driver-too-old-before-11" if is_before else "driver-too-old", older=older)
    models = [gpu.model for gpu in case.host.gpu.devices or ()]
    if any(map(is_desktop, models)):
        return case.no("driver-compat-on-desktop", older=older, compat=compat[-1])
    # Only models of data centres, which cuda-compat is for, have a known capability.
    is_known = models and None not in map(capability_of, models)
    kind = "data centre" if is_known else "unknown"
    return case.unknown("driver-compat", older=older, compat=compat[-1], kind=kind)


def _older_cuda(case: RuleCase) -> str:
    """Return the advice to use the newest CUDA that the driver runs; empty if there is none."""
    fitting = _fitting(case, [capability_in(gpu) for gpu in case.host.gpu.devices or ()])
    if not fitting:
        return ""
    newest = fitting[-1]
    return (
        f"take an image with CUDA {newest} or older, which this driver runs (--cuda {newest}); or "
    )


def _fitting(case: RuleCase, capabilities: Iterable[int | None]) -> list[str]:
    """Return the CUDA releases of the image's architecture that run on the host's driver."""
    arch, installed = case.contract.architecture, case.host.gpu.driver
    releases = {
        version: release
        for version, release in case.facts.cuda.items()
        if arch in release.architectures
    }
    return runnable(releases, "" if installed in (None, NONE) else str(installed), capabilities)


def runnable(
    releases: Mapping[str, CudaRelease],
    driver_version: str,
    capabilities: Iterable[int | None],
    *,
    compiled: str = "",
) -> list[str]:
    """Return the CUDA releases that run on a driver and have code for all these GPUs.

    An unknown driver or GPU is assumed to fit. Newer GPUs run PTX of a release's last capability if
    the release is not newer than the one whose PTX is `compiled` by the driver. Minor-version
    compatibility covers the rest:
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    numbers = [number for number in capabilities if number is not None]
    fitting = []
    for version, release in releases.items():
        codes = [int(code) for code in release.capabilities]
        is_compiled = compiled and version_order(compiled) >= version_order(version)
        ptx = max(codes, default=None) if is_compiled else None
        has_code = all(code_for(number, codes) or (ptx and ptx < number) for number in numbers)
        is_old = driver_version and version_order(driver_version) < version_order(release.driver)
        if release.driver and not is_old and (has_code or not codes):
            fitting.append(version)
    return fitting


def devices(case: RuleCase) -> RuleAnswer | None:
    """Answer whether the host has GPUs or, in MIG mode, instances of them."""
    gpu = case.host.gpu
    if case.contract.cuda is None or case.is_foreign:
        return None
    if gpu.devices is None:
        return case.unknown("gpus-unknown")
    if not gpu.devices:
        return case.no("gpus-on-bus-alone" if gpu.on_bus else "gpus-none")
    # At least one must be visible: in MIG mode, only the instances are.
    visible = [_is_visible(device) for device in gpu.devices]
    hidden = _listed(number for number, seen in enumerate(visible) if seen is False)
    doubtful = _listed(number for number, seen in enumerate(visible) if seen is None)
    if True not in visible:
        if doubtful:
            return case.unknown("mig-unknown", numbers=doubtful)
        return case.no("mig-without-instance", numbers=hidden)
    models = Counter(device.model or "unknown model" for device in gpu.devices)
    texts = [", ".join(f"{number} x {model}" for model, number in models.items())]
    if instances := sum(device.mig_instances or 0 for device in gpu.devices if device.mig):
        texts.append(f"{instances} MIG instances: a process computes on one")
    if hidden:
        texts.append(f"GPU {hidden} is in MIG mode without an instance")
    return case.yes("gpus", devices="; ".join(texts))


def _is_visible(gpu: HostGpu) -> bool | None:
    """Return whether programs see a GPU, or a part of it; None if unknown."""
    if gpu.mig:
        return None if gpu.mig_instances is None else gpu.mig_instances > 0
    capability = capability_in(gpu)
    may_be_divided = gpu.mig is None and (capability is None or capability in MIG)
    return None if may_be_divided else True


def capability_in(gpu: HostGpu) -> int | None:
    """Return a GPU's compute capability, from its model if necessary."""
    return gpu.capability if gpu.capability is not None else capability_of(gpu.model)


def capabilities(case: RuleCase) -> RuleAnswer | None:
    """Answer whether the image has code for each GPU, or PTX that the driver compiles for it."""
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
    # By default CUDA orders GPUs by speed, not as in the driver's list
    variables = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={','.join(map(str, good))}"
    for answer in (NO, UNKNOWN):
        failing = next((one for one in answers.values() if one.answer == answer), None)
        if failing:
            fix = f"show only the other GPUs to the image ({variables}); or {failing.fix}"
            return replace(failing, fix=fix) if good else failing
    return case.yes("gpus", devices="; ".join(answer.reason for answer in answers.values()))


def _capability(case: RuleCase, cuda: NeededCuda, number: int | None, name: str) -> RuleAnswer:
    if number is None:
        return case.unknown("capability-unknown", name=name)
    capability = dotted_capability(number)
    branch, installed = last_branch(number), case.host.gpu.driver
    if branch and installed not in (None, NONE) and version_order(str(installed))[0] > branch:
        return case.no(
            "capability-no-longer-driven", name=name, capability=capability, branch=branch
        )
    if not cuda.capabilities:
        return case.unknown("code-unknown", name=name, capability=capability)
    if code := code_for(number, map(int, cuda.capabilities)):
        code_text = dotted_capability(code)
        return case.yes("code-fits", name=name, capability=capability, code=code_text)
    return _by_ptx(case, cuda, number, name)


def _by_ptx(case: RuleCase, cuda: NeededCuda, number: int, name: str) -> RuleAnswer:
    installed = case.host.gpu.driver
    parts: dict[str, object] = {
        "name": name,
        "capability": dotted_capability(number),
        "codes": ", ".join(dotted_capability(int(code)) for code in cuda.capabilities),
        "ptx": dotted_capability(int(cuda.ptx or 0)),
        "other": _with_code_for(case, number),
    }
    if not cuda.ptx or int(cuda.ptx) > number:
        return case.no("code-none", **parts)
    if installed is None or not cuda.shipped_driver:
        return case.unknown("ptx-unknown", **parts)
    branch = version_order(cuda.shipped_driver)[0]
    if installed == NONE or version_order(installed)[0] < branch:
        return case.no("ptx-newer-than-driver", branch=branch, **parts)
    return case.yes("ptx-fits", **parts)


def _with_code_for(case: RuleCase, capability: int) -> str:
    """Return the advice which CUDA releases have code for a GPU and run on the host's driver."""
    fitting = _fitting(case, [capability])
    if not fitting:
        code = f"code for {dotted_capability(capability)} that this driver runs"
        return f"another driver, or a GPU of another generation: no CUDA has {code}"
    return f"take an image with CUDA {fitting[0]} to {fitting[-1]}, which have code for it"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
