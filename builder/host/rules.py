"""The rules for the machine, and the verdict by all rules."""

from __future__ import annotations

from builder.facts import NO_FACTS, Facts
from builder.host import gpus
from builder.host.launchers import launched_by
from builder.host.records import Host
from builder.host.runtimes import started_by
from builder.host.verdict import HostVerdict, RuleAnswer, RuleCase, named
from builder.model.architectures import ARCHITECTURES, EMULATED, cpu_features, level_of
from builder.model.cells import GENERIC
from builder.model.contract import HostContract
from builder.model.versions import version_order

_SHOWN = 8
# On these hosts QEMU's user mode never had correct 64-bit atomic instructions, and from 10.0 on it
# is not built for them: https://www.qemu.org/docs/master/about/removed-features.html
_NARROW = ("armv6l", "armv7l", "armv8l", "i386", "i486", "i586", "i686", "ppc", "riscv32", "mips")
_KERNEL_PARTS = 3  # 4.14.0 of 4.14.0-115.35.1.el7a: the rest is the distribution's


def judge(
    contract: HostContract,
    host: Host,
    known: Facts = NO_FACTS,
    *,
    runtimes: tuple[str, ...] = (),
    launchers: tuple[str, ...] = (),
    emulated: bool = False,
) -> HostVerdict:
    """Return the verdict on an image and a host. It is never yes if a required fact is unknown.

    Without `runtimes`, any of the host's may start the image; without `launchers`, any way of
    starting ranks is enough. `emulated` allows programs of another architecture under QEMU.
    """
    case = RuleCase(contract=contract, host=host, facts=known, emulated=emulated)
    answers = {
        "architecture": _architecture(case),
        "processor": _processor(case),
        "kernel": _kernel(case),
        "driver": gpus.driver(case),
        "GPUs": gpus.devices(case),
        "compute capability": gpus.capabilities(case),
    }
    started = started_by(case, runtimes)
    return HostVerdict(
        image=contract.image,
        host=host.name,
        rules=tuple(named(rule, answer) for rule, answer in answers.items() if answer),
        runtimes=started,
        launchers=launched_by(case, launchers, started),
        emulated=emulated and case.is_foreign,
    )


def _architecture(case: RuleCase) -> RuleAnswer:
    """Answer whether the image's programs start natively or, if requested, emulated."""
    host, needed = case.host, case.contract.architecture
    if host.architecture is None:
        return case.unknown("architecture-unknown")
    if not case.is_foreign:
        return case.yes("architecture-native")
    if case.emulated:
        return _emulation(case)
    if host.architecture in ARCHITECTURES:
        twin = case.contract.image.removesuffix(needed) + host.architecture
        answer = case.no("architecture-foreign", twin=twin)
    else:
        answer = case.no("architecture-without-images")
    if needed in (host.emulators or ()) and host.architecture not in _NARROW:
        return case.no("emulation-not-asked-for", fix=answer.fix)
    return answer


def _emulation(case: RuleCase) -> RuleAnswer:
    host = case.host
    if host.architecture in _NARROW:
        return case.no("emulation-narrow")
    if host.emulators is None:
        return case.unknown("emulation-unknown")
    if case.contract.architecture not in host.emulators:
        return case.no("emulation-none")
    return case.yes("emulation")


def _processor(case: RuleCase) -> RuleAnswer | None:
    """Answer whether the processor has all features that the compiled code uses."""
    needed = case.contract.cpu
    if case.is_foreign and not case.emulated:
        return None
    names = [name for name in (needed.target, needed.baseline) if name not in ("", GENERIC)]
    features = needed.features or tuple(feature for name in names for feature in cpu_features(name))
    if not names and not features:
        return case.yes("processor-any")
    title = " and ".join(names) or " ".join(features)
    if not features:
        return case.unknown("processor-in-no-table", title=title)
    if not case.is_foreign:
        return _native_processor(case, title, features)
    if {*features} <= EMULATED.get(case.contract.architecture, set()):
        return case.yes("processor-emulated", title=title)
    return case.unknown("processor-emulation-unknown", title=title)


def _native_processor(case: RuleCase, title: str, features: tuple[str, ...]) -> RuleAnswer:
    cpu, baseline = case.host.cpu, case.contract.cpu.baseline
    if cpu.features is None:
        return case.unknown("processor-unknown", title=title)
    name = cpu.model or "the host's processor"
    missing = [feature for feature in features if feature not in cpu.features]
    if not missing:
        return case.yes("processor-fits", name=name, title=title)
    lacking = " ".join(missing[:_SHOWN])
    if len(missing) > _SHOWN:
        lacking += f" and {len(missing) - _SHOWN} more"
    if not {*cpu_features(baseline)} <= {*cpu.features}:
        return case.no("processor-lacks-baseline", title=title, name=name, lacking=lacking)
    level = level_of(case.contract.architecture, cpu.features)
    row = "processor-lacks" if level in ("", baseline) else "processor-lacks-with-level"
    return case.no(row, title=title, name=name, lacking=lacking, level=level)


def _kernel(case: RuleCase) -> RuleAnswer:
    """Answer for the kernel: the C library refuses to start on one older than it needs."""
    least, running = case.contract.kernel, case.host.kernel
    if not least:
        return case.unknown("kernel-not-said")
    if running is None:
        return case.unknown("kernel-unknown")
    glibc = f"glibc {case.contract.glibc}" if case.contract.glibc else "its C library"
    if version_order(running)[:_KERNEL_PARTS] >= version_order(least):
        return case.yes("kernel-fits", glibc=glibc)
    return case.no("kernel-too-old", glibc=glibc)
