"""The rules about container runtimes: one of them has to start the image, for an ordinary user."""

from __future__ import annotations

from builder.facts.runtimes import CLONE3_DOCKER, CLONE3_GLIBC, RUNTIMES, Runtime
from builder.hosts.record import HostGpus, HostRuntime
from builder.hosts.verdict import YES, Case, Finding, all_of, no, unknown, yes
from builder.versions import version_order

_OPEN = (
    "open them: sysctl user.max_user_namespaces=10000, "
    "and on old Debian kernel.unprivileged_userns_clone=1"
)


def started_by(case: Case, names: tuple[str, ...]) -> tuple[Finding, ...]:
    """The answer for each of the runtimes named; of those that are here if none is."""
    found = case.host.runtimes
    if found is None:
        reason = "which container runtimes the host has is not known"
        fix = "record them with their versions: apptainer --version, ch-run --version, ..."
        return tuple(unknown(name, reason, fix) for name in names or ("container runtime",))
    if not names and not found:
        every = ", ".join(RUNTIMES)
        return (no("container runtime", "the host has none", f"install one of {every}"),)
    return tuple(_judged(case, RUNTIMES[name], found.get(name)) for name in names or found)


def _judged(case: Case, runtime: Runtime, found: HostRuntime | None) -> Finding:
    rule = runtime.name
    if found is None:
        return no(rule, "not found on the host", f"install {runtime.name}, or use another runtime")
    parts = [
        one
        for one in (
            _version(case, runtime, found),
            _namespaces(case, runtime, found),
            _gpu(case, runtime, found),
        )
        if one is not None
    ]
    answer = all_of([one.answer for one in parts])
    if answer != YES:
        return next(one for one in parts if one.answer == answer)
    reasons = [f"{runtime.name} {found.version}".strip(), *(one.reason for one in parts)]
    return yes(rule, "; ".join(reasons))


def _version(case: Case, runtime: Runtime, found: HostRuntime) -> Finding | None:
    rule = runtime.name
    if runtime.oldest and not found.version:
        reason = f"SIF images need version {runtime.oldest}, and this one is not known"
        return unknown(rule, reason, f"record it: {rule} --version")
    if runtime.oldest and version_order(found.version) < version_order(runtime.oldest):
        reason = f"version {found.version} reads no SIF: {runtime.oldest} is the first"
        return no(rule, reason, "use a newer version, or Charliecloud")
    return _threads(case, found) if runtime.name == "docker" else None


def _threads(case: Case, found: HostRuntime) -> Finding | None:
    """Docker's filter of system calls against a newer C library."""
    rule, glibc = "docker", case.contract.glibc
    fix = f"Docker {CLONE3_DOCKER} or newer, or --security-opt seccomp=unconfined"
    if glibc and version_order(glibc) < version_order(CLONE3_GLIBC):
        return None
    if not glibc or not found.version:
        which = "Docker's version" if glibc else "the image's glibc"
        reason = f"Docker before {CLONE3_DOCKER} starts no thread of glibc {CLONE3_GLIBC} and newer"
        return unknown(rule, f"{reason}, and {which} is not known", fix)
    if version_order(found.version) >= version_order(CLONE3_DOCKER):
        return None
    reason = (
        f"Docker {found.version} forbids clone3, by which the image's glibc {glibc} starts threads "
        '("Operation not permitted")'
    )
    return no(rule, reason, fix)


def _namespaces(case: Case, runtime: Runtime, found: HostRuntime) -> Finding | None:
    """An ordinary user's containers are user namespaces, or a starter with setuid makes them."""
    rule, allowed = runtime.name, case.host.user_namespaces
    if not runtime.rootless:
        return None
    if found.setuid:
        return yes(rule, "its starter is setuid root")
    if allowed:
        return yes(rule, "user namespaces are open to ordinary users")
    if runtime.format != "sif":
        return _closed(rule, allowed, _OPEN)
    fix = f"{_OPEN}; or install its setuid starter (apptainer-suid)"
    if allowed is False and found.setuid is None:
        reason = "user namespaces are closed, and whether its starter is setuid is not known"
        return unknown(rule, reason, fix)
    return _closed(rule, allowed, fix)


def _closed(rule: str, allowed: bool | None, fix: str) -> Finding:
    if allowed is None:
        reason = "whether user namespaces are open to ordinary users is not known"
        return unknown(rule, reason, fix)
    return no(rule, "user namespaces are closed to ordinary users", fix)


def _gpu(case: Case, runtime: Runtime, found: HostRuntime) -> Finding | None:
    """The driver's libraries are the host's: something has to bring them into the container."""
    rule = runtime.name
    if case.contract.cuda is None:
        return None
    ways = _ways(runtime, found, case.host.gpu)
    for option, works in ways.items():
        if works:
            return yes(rule, f"{option} brings the driver's libraries in")
    fix = "install NVIDIA's container toolkit, and run: nvidia-ctk cdi generate"
    if None in ways.values():
        reason = f"whether {' or '.join(ways)} can bring the driver's libraries in is not known"
        return unknown(rule, reason, fix)
    return no(rule, "nothing here brings the driver's libraries into its containers", fix)


def _ways(runtime: Runtime, found: HostRuntime, gpu: HostGpus) -> dict[str, bool | None]:
    """How a runtime can be told to bring the driver in, and whether that works here."""
    if runtime.name == "charliecloud":
        return {runtime.gpu: gpu.toolkit, "ch-run --cdi": _both(found.cdi, gpu.cdi)}
    if runtime.name == "podman":
        hook = None if gpu.toolkit else gpu.toolkit  # the toolkit may have set its hook up, or not
        return {runtime.gpu: gpu.cdi, "NVIDIA's hook": hook}
    return {runtime.gpu: True if runtime.format == "sif" else gpu.toolkit}


def _both(one: bool | None, other: bool | None) -> bool | None:
    if False in (one, other):
        return False
    return None if None in (one, other) else True
