"""Check Python packages, their build requirements, and conda packages against indexes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from builder.facts.software import PUBLISHERS_INDEXES
from builder.model.errors import counted
from builder.model.exact_json import part
from builder.model.versions import version_order
from builder.verify.rehearse.resolution import Resolved, Resolver, Unresolvable
from builder.verify.rehearse.servers import Ask, Unavailable
from builder.verify.rehearse.steps import PipInstall, PythonTarget, Step, arguments_of, pip_installs
from builder.verify.rehearse.trials import CONDA, PYTHON, Trial, failed, not_tried, passed

_PIN = "use a version with a wheel, or pin its build requirements and add --no-build-isolation"
_SHOWN = 6
# Older pips build legacy source distributions with the installed packages, newer ones isolate:
# https://pip.pypa.io/en/stable/news/#v23-1
_LEGACY_UNTIL = (23, 1)
# The distribution's Python has setuptools; its virtual environments have it before Python 3.12:
# https://docs.python.org/3/library/venv.html
_OF_DISTRIBUTION = "setuptools"
_VENV_IS_EMPTY_SINCE = (3, 12)

_UNKNOWN = PythonTarget(**dict.fromkeys(("arch", "python", "pip", "glibc"), "0"))

Resolution = tuple[Resolved, ...] | Unavailable | Unresolvable


class PythonTrials:
    """Tries the `pip install` commands of many images; equal ones are resolved once."""

    def __init__(self, resolver: Resolver, ask: Ask) -> None:
        self._resolver, self._ask = resolver, ask
        self._resolve = functools.cache(self._resolved)

    def of(self, steps: Iterable[Step], target: PythonTarget | None) -> Iterator[Trial]:
        """Try each command that installs from an index; list other requirements as not tried."""
        for command in pip_installs(steps, target or _UNKNOWN):
            if target is None:
                reason = "the tables of facts do not say which Python the distribution has"
                yield not_tried(PYTHON, command.subject, reason, command.step.line)
                continue
            if command.others and command.with_dependencies:
                subject = f"pip install {' '.join(command.others[:_SHOWN])}"
                reason = "its requirements are in files or at URLs, not in an index"
                yield not_tried(PYTHON, subject, reason, command.step.line)
            if command.requirements:
                yield self._trial(command)

    def packages(self, command: PipInstall) -> tuple[Resolved, ...]:
        """Return the packages that a command installs from the index, if they are known."""
        resolution = self._resolution(command) if command.requirements else ()
        return resolution if isinstance(resolution, tuple) else ()

    def _trial(self, command: PipInstall) -> Trial:
        subject, line, target = command.subject, command.step.line, command.target
        if misplaced := _misplaced(command):
            return failed(PYTHON, subject, misplaced, line)
        packages = self._resolution(command)
        if isinstance(packages, Unavailable):
            return not_tried(PYTHON, subject, str(packages), line)
        if isinstance(packages, Unresolvable):
            return failed(PYTHON, subject, f"{target.short}: {packages}", line)
        if faults := [text for package in packages if (text := _unpinned_build(package, command))]:
            return failed(PYTHON, subject, f"{target.short}: {'; '.join(faults)}", line, _PIN)
        built = [f"{package.name} {package.version}" for package in packages if package.source]
        text = f"{target.short}: {counted(len(packages) - len(built), 'wheel')}"
        if built:
            text = f"{text}; compiled with pinned requirements: {', '.join(built)}"
        return passed(PYTHON, subject, text, line)

    def _resolution(self, command: PipInstall) -> Resolution:
        options = [] if command.with_dependencies else ["--no-deps"]
        indexes = [("--index-url", command.index)] if command.index else []
        indexes += [("--extra-index-url", url) for url in command.extra_indexes]
        for option, url in indexes:
            answer = self._ask(f"{url.rstrip('/')}/")
            if answer.has is None:
                return Unavailable(f"the index {url} is not available: {answer.text}")
            options += [option, url]
        return self._resolve(command.requirements, command.target, tuple(options))

    def _resolved(
        self, requirements: tuple[str, ...], target: PythonTarget, options: tuple[str, ...]
    ) -> Resolution:
        try:
            return self._resolver.resolve(requirements, target, options)
        except (Unavailable, Unresolvable) as reason:
            return reason


def _misplaced(command: PipInstall) -> str:
    urls = (command.index, *command.extra_indexes)
    for requirement in map(Requirement, command.requirements):
        pins = [each.version for each in requirement.specifier if each.operator == "=="]
        for row in PUBLISHERS_INDEXES:
            if (
                canonicalize_name(requirement.name) == row.package
                and all(map(SpecifierSet(row.versions).contains, pins))
                and not any(url.startswith(row.url) for url in urls)
            ):
                return f"{requirement} is in an index such as {row.example} ({row.source})"
    return ""


def _unpinned_build(package: Resolved, command: PipInstall) -> str:
    source = package.source
    if source is None:
        return ""
    needed = [*map(Requirement, source.build_requires)]
    old_pip = version_order(command.target.pip) < _LEGACY_UNTIL
    if not command.is_isolated or (source.is_legacy and old_pip):
        if command.is_isolated:  # `setup.py install` does without wheel
            needed = [Requirement("setuptools")]
        unpinned = [str(each) for each in needed if not _is_installed(each, command)]
        reason = "no earlier command pins that"
    else:
        exact = {"==", "==="}
        unpinned = [
            str(each)
            for each in needed
            if exact.isdisjoint(specifier.operator for specifier in each.specifier)
        ]
        reason = "the newest version at build time is used"
    if not unpinned:
        return ""
    name = f"{package.name} {package.version}"
    return f"{name} has no wheel and is compiled with {', '.join(unpinned)}: {reason}"


def _is_installed(requirement: Requirement, command: PipInstall) -> bool:
    name = canonicalize_name(requirement.name)
    if not _applies(requirement, command.target):
        return True
    if name in command.installed:
        return requirement.specifier.contains(command.installed[name])
    is_empty = bool(command.environment) and command.target.series >= _VENV_IS_EMPTY_SINCE
    return name == _OF_DISTRIBUTION and not is_empty


def _applies(requirement: Requirement, target: PythonTarget) -> bool:
    """Return whether a marker matches the target's Python; its system is that of this machine."""
    if requirement.marker is None:
        return True
    return requirement.marker.evaluate(
        {
            "python_version": ".".join(map(str, target.series)),
            "python_full_version": target.python,
            "platform_machine": target.arch,
        }
    )


# ---- conda ----

SUBDIRS: Mapping[str, str] = {
    "x86_64": "linux-64",
    "ppc64le": "linux-ppc64le",
    "aarch64": "linux-aarch64",
}
_CONDA_PIN = re.compile(r"(?P<name>[\w.-]+)=(?P<version>[\w.]+)(?:=.*)?")
_CHANNEL = ("channels", "-c", "--channel")  # `conda config --add channels NAME`, or an option
_WITH_VALUE = ("-n", "--name", "-p", "--prefix", "-f", "--file")

# A channel's repodata.json for a subdir, or the reason why it cannot be read.
ReadChannel = Callable[[str, str], Mapping[str, object] | str]


class CondaTrials:
    """Tries the packages that images install with conda."""

    def __init__(self, read_channel: ReadChannel) -> None:
        self._read = functools.cache(read_channel)

    def of(self, steps: Iterable[Step], arch: str) -> Iterator[Trial]:
        channels: list[str] = []
        for step in steps:
            if step.program != "conda":
                continue
            arguments = arguments_of(step.argv[1:], (*_CHANNEL, *_WITH_VALUE))
            channels += arguments.all(*_CHANNEL)
            if "install" in arguments.words:
                for pin in filter(None, map(_CONDA_PIN.fullmatch, arguments.words)):
                    yield self._trial(step, pin, channels, SUBDIRS[arch])

    def _trial(self, step: Step, pin: re.Match[str], channels: list[str], subdir: str) -> Trial:
        subject, reasons, versions = f"conda {pin[0]}", [], set[str]()
        for channel in dict.fromkeys(channels):
            index = self._read(channel, subdir)
            if isinstance(index, str):
                reasons.append(f"{channel}: {index}")
                continue
            own = {*_versions(index, pin["name"])}
            # `name=2.12` means 2.12 and 2.12.x
            if any(f"{version}.".startswith(f"{pin['version']}.") for version in own):
                return passed(CONDA, subject, f"{channel} has it for {subdir}", step.line)
            versions |= own
        if reasons or not channels:
            text = "; ".join(reasons) or "no channel is named"
            return not_tried(CONDA, subject, text, step.line)
        text = ", ".join(sorted(versions)) or "no version of it"
        text = f"the channels have {text} for {subdir}"
        if step.has_fallback:
            text = f"{text}; if it fails, another command is run"
            return not_tried(CONDA, subject, text, step.line)
        return failed(CONDA, subject, text, step.line)


def _versions(index: Mapping[str, object], name: str) -> Iterator[str]:
    for table in ("packages", "packages.conda"):
        for row in (part(index, table) or {}).values():
            if row.get("name") == name:
                yield str(row["version"])
