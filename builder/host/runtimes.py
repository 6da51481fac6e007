"""The rules for container runtimes: one of them must start the image for an ordinary user."""

from __future__ import annotations

from dataclasses import replace

from builder.facts.software import CLONE3_GLIBC, RUNTIMES, SET_ENV, SET_ENV_FILE, Runtime
from builder.host.records import HostGpus, HostRuntime
from builder.host.verdict import NO, YES, RuleAnswer, RuleCase, all_of_answers, named
from builder.model.versions import version_order

RUNTIME_NAMES = tuple(RUNTIMES)  # container runtimes that a host may have
_ANY = "container runtime"


def started_by(case: RuleCase, names: tuple[str, ...]) -> tuple[RuleAnswer, ...]:
    """Return the answer for each named runtime, or without names, for the host's runtimes."""
    installed = case.host.runtimes
    if installed is None:
        answer = case.unknown("runtimes-unknown")
        return tuple(named(name, answer) for name in names or (_ANY,))
    if not names and not installed:
        return (named(_ANY, case.no("runtimes-none", all=", ".join(RUNTIMES))),)
    return tuple(
        named(name, _answer(case, RUNTIMES[name], installed.get(name)))
        for name in names or installed
    )


def _answer(case: RuleCase, runtime: Runtime, installed: HostRuntime | None) -> RuleAnswer:
    if installed is None:
        return case.no("runtime-absent", runtime=runtime)
    rules = (_version, _variables, _threads, _namespaces, _fuse, _gpu)
    asked = [rule(case, runtime, installed) for rule in rules]
    answers = [answer for answer in asked if answer is not None]
    worst = all_of_answers(answers)
    title = f"{runtime.name} {installed.version}".strip()
    reasons = "; ".join([title, *(answer.reason for answer in answers)])
    answer = case.yes("runtime-fits", reasons=reasons)
    if worst != YES:
        answer = next(answer for answer in answers if answer.answer == worst)
    return answer if worst == NO else _with_command(answer, case, runtime, installed)


def _with_command(
    answer: RuleAnswer, case: RuleCase, runtime: Runtime, installed: HostRuntime
) -> RuleAnswer:
    """Return the answer with the command that starts a program in IMAGE there."""
    option = _driver_option(case, runtime, installed).removeprefix("ch-run ")
    command = runtime.run.format(gpu=f" {option}" if option.startswith("-") else "")
    if installed.version and _is_older(installed.version, SET_ENV):
        command = command.replace("--set-env", "--set-env=IMAGE/ch/environment")
    before = f"{option} IMAGE" if option.startswith("ch-fromhost") else ""
    return replace(answer, command=command, before=before)


def _version(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    if runtime.oldest and not installed.version:
        return case.unknown("runtime-version-unknown", runtime=runtime)
    if runtime.oldest and _is_older(installed.version, runtime.oldest):
        return case.no("runtime-too-old", runtime=runtime, version=installed.version)
    return None


def _variables(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    """Answer for the image's variables, which Charliecloud sets only with an option."""
    version = installed.version
    if runtime.name != "charliecloud" or not version or not _is_older(version, SET_ENV):
        return None
    if _is_older(version, SET_ENV_FILE):
        return case.no("variables-not-set", version=version, newest=SET_ENV)
    return case.yes("variables-by-file", newest=SET_ENV)


def _threads(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    """Answer for threads: an old system call filter forbids those of a newer C library."""
    glibc, first, version = case.contract.glibc, runtime.clone3, installed.version
    if not first or installed.clone3 or (glibc and _is_older(glibc, CLONE3_GLIBC)):
        return None
    if not glibc:
        return case.unknown("threads-unknown-glibc", runtime=runtime, threshold=CLONE3_GLIBC)
    if installed.clone3 is None:  # the runtime uses its built-in filter
        if not version:
            return case.unknown("threads-unknown-version", runtime=runtime, threshold=CLONE3_GLIBC)
        if not _is_older(version, first):
            return None
        if not _is_older(version, runtime.patched):
            return case.unknown("threads-perhaps-forbidden", runtime=runtime, version=version)
    return case.no("threads-forbidden", runtime=runtime, version=version)


def _is_older(version: str, other: str) -> bool:
    return version_order(version) < version_order(other)


def _namespaces(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    """Answer for namespaces: ordinary users need user namespaces or a setuid starter."""
    is_open = case.host.user_namespaces
    if not runtime.rootless:
        return None
    if installed.setuid:
        return case.yes("namespaces-by-setuid")
    if is_open:
        return _profile(case, runtime, installed)
    if is_open is None:
        return case.unknown("namespaces-unknown")
    is_sif = runtime.format == "sif"
    if is_sif and installed.setuid is None:
        return case.unknown("setuid-unknown")
    return case.no("namespaces-closed-to-sif" if is_sif else "namespaces-closed")


def _profile(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer:
    """Answer for AppArmor: if it restricts user namespaces, the program needs a profile."""
    if not case.host.restricted_namespaces:
        return case.yes("namespaces-open")
    if installed.profile:
        return case.yes("profile-fits")
    if installed.profile is None:
        return case.unknown("profile-unknown", runtime=runtime)
    return case.no("profile-none", runtime=runtime)


def _fuse(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    """Answer for FUSE: without setuid, a SIF is mounted by FUSE, or else unpacked at each start."""
    if runtime.format != "sif" or installed.setuid or case.host.fuse is not False:
        return None
    return case.yes("unpacked-without-fuse")


def _gpu(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> RuleAnswer | None:
    """Answer for the driver's libraries, which must be mounted from the host."""
    if case.contract.cuda is None:
        return None
    if option := _driver_option(case, runtime, installed):
        return case.yes("driver-brought-in", option=option)
    ways = _ways(runtime, installed, case.host.gpu)
    if None in ways.values():
        return case.unknown("driver-perhaps-brought-in", options=" or ".join(ways))
    if installed.version and _is_older(installed.version, runtime.gpu_oldest):
        return case.no("driver-runtime-too-old", runtime=runtime, version=installed.version)
    return case.no("driver-not-brought-in")


def _driver_option(case: RuleCase, runtime: Runtime, installed: HostRuntime) -> str:
    """Return the option that mounts the driver; empty if none is known to work, or to be needed."""
    ways = _ways(runtime, installed, case.host.gpu) if case.contract.cuda else {}
    return next((option for option, works in ways.items() if works), "")


def _ways(runtime: Runtime, installed: HostRuntime, gpu: HostGpus) -> dict[str, bool | None]:
    """Return the options by which a runtime mounts the driver, and whether they work here."""
    hook = None if gpu.toolkit else gpu.toolkit  # with the toolkit, its hook may be set up or not
    is_new = not _is_older(installed.version, runtime.gpu_oldest) if installed.version else None
    if runtime.name == "charliecloud":
        return {runtime.gpu: gpu.toolkit, "ch-run --cdi": _both(installed.cdi, gpu.cdi)}
    if runtime.name == "crio":
        return {runtime.gpu: _both(is_new, gpu.cdi), "NVIDIA's runtime": hook}
    if runtime.name == "podman":
        return {runtime.gpu: _both(is_new, gpu.cdi), "NVIDIA's hook": hook}
    return {runtime.gpu: True if runtime.format == "sif" else _both(is_new, gpu.toolkit)}


def _both(first: bool | None, second: bool | None) -> bool | None:
    """Return whether both hold; None if that is not known."""
    return False if False in (first, second) else None if None in (first, second) else True
