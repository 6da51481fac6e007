"""The rules about a host: those about the machine, and all of them together."""

from __future__ import annotations

from builder.facts import NO_FACTS, Facts
from builder.host import gpus
from builder.host.launchers import launched_by
from builder.host.records import Host
from builder.host.runtimes import started_by
from builder.host.verdict import (
    HostVerdict,
    RuleAnswer,
    RuleCase,
    named,
    no,
    not_known,
    unknown,
    yes,
)
from builder.model.architectures import ARCHITECTURES, EMULATED, cpu_features, level_of
from builder.model.cells import GENERIC
from builder.model.contract import HostContract
from builder.model.versions import version_order

_SHOWN = 8
# In user mode QEMU's atomic instructions of 64 bits were never whole on them, and from 10.0 on it
# is not built for them: https://www.qemu.org/docs/master/about/removed-features.html
_NARROW = ("armv6l", "armv7l", "armv8l", "i386", "i486", "i586", "i686", "ppc", "riscv32", "mips")
_KERNEL_PARTS = 3  # 4.14.0 of 4.14.0-115.35.1.el7a: what follows is the distribution's


def judge(
    contract: HostContract,
    host: Host,
    known: Facts = NO_FACTS,
    *,
    runtimes: tuple[str, ...] = (),
    launchers: tuple[str, ...] = (),
    emulated: bool = False,
) -> HostVerdict:
    """Return the verdict on an image and a host. An unknown fact that is needed is never a yes.

    Without `runtimes`, any of the host's may start it; without `launchers`, any way of starting
    ranks will do. `emulated` lets programs of another architecture run under QEMU.
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
    return HostVerdict(
        image=contract.image,
        host=host.name,
        rules=tuple(named(rule, answer) for rule, answer in answers.items() if answer),
        runtimes=started_by(case, runtimes),
        launchers=launched_by(case, launchers),
        emulated=emulated and case.is_foreign,
    )


def _architecture(case: RuleCase) -> RuleAnswer:
    """The image's programs must start: natively, or emulated where that was asked for."""
    host, needed = case.host, case.contract.architecture
    if host.architecture is None:
        return not_known("the host's architecture", "uname -m")
    if not case.is_foreign:
        return yes(f"{needed}, as the image")
    if case.emulated:
        return _emulation(case)
    twin = case.contract.image.removesuffix(needed) + host.architecture
    fix = f"take the image for {host.architecture}: {twin}"
    if host.architecture not in ARCHITECTURES:
        fix = f"a host that is {needed}"
    if needed in (host.emulators or ()) and host.architecture not in _NARROW:
        fix += "; or check with --emulated: this host has QEMU for it, some ten times slower"
    reason = f"the image is for {needed}, and the host is {host.architecture}"
    return no(f'{reason}: no program of it starts ("Exec format error")', fix)


def _emulation(case: RuleCase) -> RuleAnswer:
    host, needed = case.host, case.contract.architecture
    fix = f"register QEMU for {needed} in binfmt_misc, with the flag F"
    if host.architecture in _NARROW:
        reason = f"QEMU on {host.architecture}, a 32-bit machine, runs no 64-bit program correctly"
        return no(reason, f"a 64-bit host, such as {needed}")
    if host.emulators is None:
        return not_known(f"whether this {host.architecture} host emulates {needed}", fix)
    if needed not in host.emulators:
        return no(f"this {host.architecture} host has no emulator for {needed}", fix)
    return yes(f"{needed}, emulated by QEMU on {host.architecture}: not native")


def _processor(case: RuleCase) -> RuleAnswer | None:
    """The processor must have all that compiled code uses."""
    needed = case.contract.cpu
    if case.is_foreign and not case.emulated:
        return None
    names = [one for one in (needed.target, needed.baseline) if one not in ("", GENERIC)]
    features = needed.features or tuple(one for name in names for one in cpu_features(name))
    if not names and not features:
        return yes(f"the image runs on every {case.contract.architecture} processor")
    title = " and ".join(names) or " ".join(features)
    if not features:
        return unknown(f"what {title} needs is in no table of this version", "use a newer version")
    if case.is_foreign and {*features} <= EMULATED.get(case.contract.architecture, set()):
        return yes(f"QEMU emulates what {title} needs")
    if case.is_foreign:
        reason = f"the image is compiled for {title}, and what QEMU emulates of it is not known"
        return unknown(reason, f"try: qemu-{case.contract.architecture} -cpu help")
    return _native_processor(case, title, features)


def _native_processor(case: RuleCase, title: str, features: tuple[str, ...]) -> RuleAnswer:
    cpu, baseline = case.host.cpu, case.contract.cpu.baseline
    if cpu.features is None:
        fact = f"the image is compiled for {title}, and the host's processor"
        return not_known(fact, '/proc/cpuinfo; or by name: cpu: {"target": "..."}')
    lacking = [feature for feature in features if feature not in cpu.features]
    name = cpu.model or "the host's processor"
    if not lacking:
        return yes(f"{name} has all that {title} needs")
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    reason = (
        f"the image is compiled for {title}, and {name} lacks {' '.join(lacking[:_SHOWN])}{more}: "
        'programs end with "Illegal instruction"'
    )
    level = level_of(case.contract.architecture, cpu.features)
    also = f", or for {level} (--cpu-target {level})" if level not in ("", baseline) else ""
    fix = f"take the image for every processor{also}, or a host that is {title}"
    if not {*cpu_features(baseline)} <= {*cpu.features}:
        fix = (
            f"take the image on another base: this one's packages need {baseline}, those of "
            "Debian and of older releases do not"
        )
    return no(reason, fix)


def _kernel(case: RuleCase) -> RuleAnswer:
    """The image's C library ends at once on a kernel older than it was configured for."""
    least, running = case.contract.kernel, case.host.kernel
    if not least:
        reason = "the image does not say which kernel its C library needs"
        return unknown(reason, "add its distribution to facts/systems.yaml, and build it again")
    if running is None:
        return not_known(f"the image needs Linux {least}, and the host's kernel", "uname -r")
    glibc = f"glibc {case.contract.glibc}" if case.contract.glibc else "its C library"
    if version_order(running)[:_KERNEL_PARTS] >= version_order(least):
        return yes(f"Linux {running}; {glibc} needs {least}")
    reason = f'Linux {running} is older than {least}, which {glibc} needs: "FATAL: kernel too old"'
    return no(reason, f"a kernel {least} or newer, or an image on an older base")
