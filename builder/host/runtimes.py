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
from builder.host.verdict import (
    YES,
    RuleAnswer,
    RuleCase,
    all_of_answers,
    named,
    no,
    not_known,
    unknown,
    yes,
)
from builder.model.versions import version_order

RUNTIME_NAMES = tuple(RUNTIMES)  # container runtimes that a host can have
_ANY = "container runtime"
_OPEN = (
    "open them: sysctl user.max_user_namespaces=10000, "
    "and on old Debian kernel.unprivileged_userns_clone=1"
)


def started_by(case: RuleCase, names: tuple[str, ...]) -> tuple[RuleAnswer, ...]:
    """Return the answer for each of the runtimes named, or for those of the host if none is."""
    installed = case.host.runtimes
    if installed is None:
        reason = "which container runtimes the host has is not known"
        fix = "record them with their versions: apptainer --version, ch-run --version, ..."
        return tuple(named(name, unknown(reason, fix)) for name in names or (_ANY,))
    if not names and not installed:
        return (named(_ANY, no("the host has none", f"install one of {', '.join(RUNTIMES)}")),)
    return tuple(
        named(name, _answer(case, RUNTIMES[name], installed.get(name)))
        for name in names or installed
    )


def _answer(case: RuleCase, runtime: Runtime, installed: HostRuntime | None) -> RuleAnswer:
    if installed is None:
        return no("not found on the host", f"install {runtime.name}, or use another runtime")
    rules = (_version, _variables, _threads, _namespaces, _fuse, _gpu)
    asked = [rule(case, runtime, installed) for rule in rules]
    answers = [answer for answer in asked if answer is not None]
    worst = all_of_answers(answers)
    if worst != YES:
        return next(answer for answer in answers if answer.answer == worst)
    title = f"{runtime.name} {installed.version}".strip()
    return yes("; ".join([title, *(answer.reason for answer in answers)]))


def _version(_: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    if runtime.oldest and not installed.version:
        fact = f"SIF images need version {runtime.oldest}, and this one"
        return not_known(fact, f"{runtime.name} --version")
    if runtime.oldest and _is_older(installed.version, runtime.oldest):
        reason = f"version {installed.version} reads no SIF: {runtime.oldest} is the first"
        return no(reason, "use a newer version, or Charliecloud")
    return None


def _variables(_: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    """The image's variables: Charliecloud sets them if it gets the option."""
    version = installed.version
    if runtime.name != "charliecloud" or not version or not _is_older(version, SET_ENV):
        return None
    if _is_older(version, SET_ENV_FILE):
        reason = f"version {version} cannot set the image's variables: it has no --set-env"
        return no(reason, f"use {SET_ENV} or newer")
    return yes(
        "it is told the file of the image's variables, --set-env=IMAGE/ch/environment (without a "
        f"file from {SET_ENV} on)"
    )


def _threads(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    """A filter of system calls against a newer C library."""
    glibc, first, version = case.contract.glibc, runtime.clone3, installed.version
    if not first or installed.clone3 or (glibc and _is_older(glibc, CLONE3_GLIBC)):
        return None
    title, is_unknown = runtime.title, installed.clone3 is None
    fix = f"use {title} {first} or newer, or start it without the filter (seccomp=unconfined)"
    if not glibc or (not version and is_unknown):
        fact = f"{title}'s version" if glibc else "the image's glibc"
        reason = f"{title} before {first} starts no thread of glibc {CLONE3_GLIBC} and newer"
        return unknown(f"{reason}, and {fact} is not known", fix)
    if is_unknown and not _is_older(version, first):
        return None
    reason = f"{title} {version} forbids clone3, by which the image's glibc {glibc} starts threads"
    if is_unknown and not _is_older(version, runtime.patched):
        reason += ", unless the distribution's filter is newer"
        return unknown(reason, f"run a program with threads in the image; {fix}")
    return no(f'{reason} ("Operation not permitted")', fix)


def _is_older(version: str, other: str) -> bool:
    return version_order(version) < version_order(other)


def _namespaces(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    """An ordinary user's containers are user namespaces, or a starter with setuid makes them."""
    is_open = case.host.user_namespaces
    if not runtime.rootless:
        return None
    if installed.setuid:
        return yes("its starter is setuid root")
    if is_open:
        return _profile(case, runtime, installed)
    fix = _OPEN
    if runtime.format == "sif":
        fix += "; or install its setuid starter (apptainer-suid)"
    if is_open is None:
        return unknown("whether user namespaces are open to ordinary users is not known", fix)
    if runtime.format == "sif" and installed.setuid is None:
        reason = "user namespaces are closed, and whether its starter is setuid is not known"
        return unknown(reason, fix)
    return no("user namespaces are closed to ordinary users", fix)


def _profile(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer:
    """A program needs a profile that allows user namespaces if AppArmor restricts them."""
    name = runtime.name
    if not case.host.restricted_namespaces:
        return yes("user namespaces are open to ordinary users")
    if installed.profile:
        return yes("its AppArmor profile lets it make user namespaces")
    reason = "AppArmor lets only programs with a profile make user namespaces"
    fix = (
        f"write a profile of it with the rule userns (/etc/apparmor.d/{name}), or "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    )
    if installed.profile is None:
        return unknown(f"{reason}, and whether {name} has one is not known", fix)
    return no(f'{reason}, and {name} has none ("Permission denied")', fix)


def _fuse(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    """Without setuid a SIF is mounted by FUSE, or else unpacked, each time it is started."""
    if runtime.format != "sif" or installed.setuid or case.host.fuse is not False:
        return None
    return yes("without /dev/fuse it unpacks the SIF at each start: slower, and disk")


def _gpu(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    """The driver's libraries are the host's: something has to bring them into the container."""
    if case.contract.cuda is None:
        return None
    ways = _ways(runtime, installed, case.host.gpu)
    for option, works in ways.items():
        if works:
            return yes(f"{option} brings the driver's libraries in")
    fix = "install NVIDIA's container toolkit, and run: nvidia-ctk cdi generate"
    if None in ways.values():
        reason = f"whether {' or '.join(ways)} can bring the driver's libraries in is not known"
        return unknown(reason, fix)
    return no("nothing here brings the driver's libraries into its containers", fix)


def _ways(runtime: Runtime, installed: HostRuntime, gpu: HostGpus) -> dict[str, bool | None]:
    """Return the options by which a runtime brings the driver in, and whether they work here."""
    hook = None if gpu.toolkit else gpu.toolkit  # the toolkit may have set its hook up, or not
    if runtime.name == "charliecloud":
        both = (installed.cdi, gpu.cdi)
        has_cdi = False if False in both else None if None in both else True
        return {runtime.gpu: gpu.toolkit, "ch-run --cdi": has_cdi}
    if runtime.name == "crio":
        is_new = bool(installed.version) and not _is_older(installed.version, CDI_CRIO)
        return {runtime.gpu: is_new and gpu.cdi, "NVIDIA's runtime": hook}
    if runtime.name == "podman":
        return {runtime.gpu: gpu.cdi, "NVIDIA's hook": hook}
    return {runtime.gpu: True if runtime.format == "sif" else gpu.toolkit}
