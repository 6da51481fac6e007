"""The rules about container runtimes: one of them has to start the image, for an ordinary user."""

from __future__ import annotations

from builder.facts.runtimes import (
    CDI_CRIO,
    CLONE3_GLIBC,
    RUNTIMES,
    SET_ENV,
    SET_ENV_FILE,
    Runtime,
)
from builder.host.records import HostGpus, HostRuntime
from builder.host.verdict import YES, Case, Finding, all_of, no, unknown, yes
from builder.model.versions import version_order

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
            _version(runtime, found),
            _variables(runtime, found),
            _threads(case, runtime, found),
            _namespaces(case, runtime, found),
            _mounted(case, runtime, found),
            _gpu(case, runtime, found),
        )
        if one is not None
    ]
    answer = all_of([one.answer for one in parts])
    if answer != YES:
        return next(one for one in parts if one.answer == answer)
    reasons = [f"{runtime.name} {found.version}".strip(), *(one.reason for one in parts)]
    return yes(rule, "; ".join(reasons))


def _version(runtime: Runtime, found: HostRuntime) -> Finding | None:
    rule = runtime.name
    if runtime.oldest and not found.version:
        reason = f"SIF images need version {runtime.oldest}, and this one is not known"
        return unknown(rule, reason, f"record it: {rule} --version")
    if runtime.oldest and version_order(found.version) < version_order(runtime.oldest):
        reason = f"version {found.version} reads no SIF: {runtime.oldest} is the first"
        return no(rule, reason, "use a newer version, or Charliecloud")
    return None


def _variables(runtime: Runtime, found: HostRuntime) -> Finding | None:
    """The image's variables: Charliecloud sets them where it is told to."""
    rule, version = runtime.name, version_order(found.version)
    if rule != "charliecloud" or not version or version >= version_order(SET_ENV):
        return None
    if version < version_order(SET_ENV_FILE):
        reason = f"version {found.version} cannot set the image's variables: it has no --set-env"
        return no(rule, reason, f"use {SET_ENV} or newer")
    reason = (
        f"it is told the file of the image's variables, --set-env=IMAGE/ch/environment (without a "
        f"file from {SET_ENV} on)"
    )
    return yes(rule, reason)


def _threads(case: Case, runtime: Runtime, found: HostRuntime) -> Finding | None:
    """A filter of system calls against a newer C library."""
    glibc, first = case.contract.glibc, runtime.clone3
    if not first or found.clone3 or (glibc and _is_older(glibc, CLONE3_GLIBC)):
        return None
    rule, title = runtime.name, runtime.title
    fix = f"use {title} {first} or newer, or start it without the filter (seccomp=unconfined)"
    if not glibc or (not found.version and found.clone3 is None):
        which = f"{title}'s version" if glibc else "the image's glibc"
        reason = f"{title} before {first} starts no thread of glibc {CLONE3_GLIBC} and newer"
        return unknown(rule, f"{reason}, and {which} is not known", fix)
    if found.clone3 is None and not _is_older(found.version, first):
        return None
    forbids = f"forbids clone3, by which the image's glibc {glibc} starts threads"
    if found.clone3 is None and not _is_older(found.version, runtime.patched):
        reason = f"{title} {found.version} {forbids}, unless the distribution's filter is newer"
        return unknown(rule, reason, f"run a program with threads in the image; {fix}")
    reason = f'{title} {found.version} {forbids} ("Operation not permitted")'
    return no(rule, reason, fix)


def _is_older(version: str, than: str) -> bool:
    return version_order(version) < version_order(than)


def _namespaces(case: Case, runtime: Runtime, found: HostRuntime) -> Finding | None:
    """An ordinary user's containers are user namespaces, or a starter with setuid makes them."""
    rule, allowed = runtime.name, case.host.user_namespaces
    if not runtime.rootless:
        return None
    if found.setuid:
        return yes(rule, "its starter is setuid root")
    if allowed:
        return _by_profile(case, runtime, found)
    if runtime.format != "sif":
        return _closed(rule, allowed, _OPEN)
    fix = f"{_OPEN}; or install its setuid starter (apptainer-suid)"
    if allowed is False and found.setuid is None:
        reason = "user namespaces are closed, and whether its starter is setuid is not known"
        return unknown(rule, reason, fix)
    return _closed(rule, allowed, fix)


def _by_profile(case: Case, runtime: Runtime, found: HostRuntime) -> Finding:
    """Where AppArmor restricts user namespaces, a program needs a profile that allows them."""
    rule = runtime.name
    if not case.host.restricted_namespaces:
        return yes(rule, "user namespaces are open to ordinary users")
    fix = (
        f"write a profile of it with the rule userns (/etc/apparmor.d/{rule}), or "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    )
    if found.profile:
        return yes(rule, "its AppArmor profile lets it make user namespaces")
    lets = "AppArmor lets only programs with a profile make user namespaces"
    if found.profile is None:
        return unknown(rule, f"{lets}, and whether {rule} has one is not known", fix)
    return no(rule, f'{lets}, and {rule} has none ("Permission denied")', fix)


def _mounted(case: Case, runtime: Runtime, found: HostRuntime) -> Finding | None:
    """Without setuid a SIF is mounted by FUSE, or else unpacked, each time it is started."""
    if runtime.format != "sif" or found.setuid or case.host.fuse is not False:
        return None
    return yes(runtime.name, "without /dev/fuse it unpacks the SIF at each start: slower, and disk")


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
    """Return how a runtime can be told to bring the driver in, and whether that works here."""
    if runtime.name == "charliecloud":
        return {runtime.gpu: gpu.toolkit, "ch-run --cdi": _both(found.cdi, gpu.cdi)}
    if runtime.name == "crio":
        has_cdi = bool(found.version) and not _is_older(found.version, CDI_CRIO)
        hook = None if gpu.toolkit else gpu.toolkit
        return {runtime.gpu: has_cdi and gpu.cdi, "NVIDIA's runtime": hook}
    if runtime.name == "podman":
        hook = None if gpu.toolkit else gpu.toolkit  # the toolkit may have set its hook up, or not
        return {runtime.gpu: gpu.cdi, "NVIDIA's hook": hook}
    return {runtime.gpu: True if runtime.format == "sif" else gpu.toolkit}


def _both(one: bool | None, other: bool | None) -> bool | None:
    if False in (one, other):
        return False
    return None if None in (one, other) else True
