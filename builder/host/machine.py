"""The rules about the machine: architecture, processor, kernel."""

from __future__ import annotations

from builder.host.verdict import Case, Finding, no, unknown, yes
from builder.model.architectures import ARCHITECTURES, EMULATED, cpu_features, level_of
from builder.model.cells import GENERIC
from builder.model.versions import version_order

_SHOWN = 8
# In user mode QEMU's atomic instructions of 64 bits were never whole on them, and from 10.0 on it
# is not built for them: https://www.qemu.org/docs/master/about/removed-features.html
_NARROW = ("armv6l", "armv7l", "armv8l", "i386", "i486", "i586", "i686", "ppc", "riscv32", "mips")
_KERNEL_PARTS = 3  # 4.14.0 of 4.14.0-115.35.1.el7a: what follows is the distribution's


def architecture(case: Case) -> Finding:
    """The image's programs must start: natively, or emulated where that was asked for."""
    rule, host = "architecture", case.host
    wanted = case.contract.architecture
    if host.architecture is None:
        return unknown(rule, "the host's architecture is not known", "record what uname -m says")
    if not case.is_foreign:
        return yes(rule, f"{wanted}, as the image")
    if case.emulated:
        return _emulation(case)
    fix = f"take the image for {host.architecture}: {twin(case)}"
    if host.architecture not in ARCHITECTURES:
        fix = f"a host that is {wanted}"
    if wanted in (host.emulators or ()) and host.architecture not in _NARROW:
        fix += "; or check with --emulated: this host has QEMU for it, some ten times slower"
    reason = (
        f"the image is for {wanted}, and the host is {host.architecture}: no program of it starts"
    )
    return no(rule, f'{reason} ("Exec format error")', fix)


def _emulation(case: Case) -> Finding:
    rule, host, wanted = "architecture", case.host, case.contract.architecture
    fix = f"register QEMU for {wanted} in binfmt_misc, with the flag F"
    if host.architecture in _NARROW:
        reason = f"QEMU on {host.architecture}, of 32 bits, runs no program of 64 bits rightly"
        return no(rule, reason, f"a host of 64 bits, such as {wanted}")
    if host.emulators is None:
        reason = f"whether this {host.architecture} host emulates {wanted} is not known"
        return unknown(rule, reason, "record its emulators; " + fix)
    if wanted not in host.emulators:
        return no(rule, f"this {host.architecture} host has no emulator for {wanted}", fix)
    return yes(rule, f"{wanted}, emulated by QEMU on {host.architecture}: not native")


def twin(case: Case) -> str:
    """The identifier of the same image for the host's architecture."""
    stem = case.contract.image.removesuffix(case.contract.architecture)
    return f"{stem}{case.host.architecture}"


def processor(case: Case) -> Finding | None:
    """The processor must have all that compiled code uses."""
    rule, needed = "processor", case.contract.cpu
    if case.is_foreign and not case.emulated:
        return None
    names = [one for one in (needed.target, needed.baseline) if one not in ("", GENERIC)]
    features = needed.features or tuple(one for name in names for one in cpu_features(name))
    if not names and not features:
        return yes(rule, f"the image runs on every {case.contract.architecture} processor")
    title = " and ".join(names) or " ".join(features)
    if not features:
        reason = f"what {title} needs is in no table of this version"
        return unknown(rule, reason, "use a newer build-images")
    if case.is_foreign and {*features} <= EMULATED.get(case.contract.architecture, set()):
        return yes(rule, f"QEMU emulates what {title} needs")
    if case.is_foreign:
        reason = f"the image is compiled for {title}, and what QEMU emulates of it is not known"
        return unknown(rule, reason, f"try: qemu-{case.contract.architecture} -cpu help")
    return _judged(case, title, features)


def _judged(case: Case, title: str, features: tuple[str, ...]) -> Finding:
    rule, cpu = "processor", case.host.cpu
    if cpu.features is None:
        reason = f"the image is compiled for {title}, and the host's processor is not known"
        return unknown(rule, reason, 'record it: /proc/cpuinfo; or by name: cpu: {"target": "..."}')
    lacking = [one for one in features if one not in cpu.features]
    shown = cpu.model or "the host's processor"
    if not lacking:
        return yes(rule, f"{shown} has all that {title} needs")
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    level = level_of(case.contract.architecture, cpu.features)
    reason = (
        f"the image is compiled for {title}, and {shown} lacks {' '.join(lacking[:_SHOWN])}{more}: "
        'programs end with "Illegal instruction"'
    )
    return no(rule, reason, _other_image(case, level, title))


def _other_image(case: Case, level: str, title: str) -> str:
    """What to take instead: a generic image, unless the distribution itself asks for too much."""
    base = case.contract.cpu.baseline
    has = {*(case.host.cpu.features or ())}
    if {*cpu_features(base)} <= has:
        named = f", or for {level} (--cpu-target {level})" if level and level != base else ""
        return f"take the image for every processor{named}, or a host that is {title}"
    return (
        f"take the image on another base: this one's packages need {base}, those of Debian and of "
        "older releases do not"
    )


def kernel(case: Case) -> Finding:
    """The image's C library ends at once on a kernel older than it was configured for."""
    rule, least, found = "kernel", case.contract.kernel, case.host.kernel
    if not least:
        reason = "the image does not say which kernel its C library needs"
        return unknown(
            rule, reason, "add its distribution to facts/systems.yaml, and build it again"
        )
    if found is None:
        reason = f"the image needs Linux {least}, and the host's kernel is not known"
        return unknown(rule, reason, "record what uname -r says")
    glibc = f"glibc {case.contract.glibc}" if case.contract.glibc else "its C library"
    if version_order(found)[:_KERNEL_PARTS] >= version_order(least):
        return yes(rule, f"Linux {found}; {glibc} needs {least}")
    reason = f'Linux {found} is older than {least}, which {glibc} needs: "FATAL: kernel too old"'
    return no(rule, reason, f"a kernel {least} or newer, or an image on an older base")
