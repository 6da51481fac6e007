"""Python packages of an image against the index: which have wheels, and what builds the others."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from builder.facts.software import PUBLISHERS_INDEXES
from builder.model.errors import counted
from builder.model.versions import version_order
from builder.verify.rehearse.index import OutOfReach
from builder.verify.rehearse.pip_commands import PipInstall, Target, pip_installs
from builder.verify.rehearse.resolution import Resolved, Resolver, SourceDistribution, Unresolvable
from builder.verify.rehearse.source_urls import Ask
from builder.verify.rehearse.steps import Step
from builder.verify.rehearse.trials import PYTHON, Trial, failed, not_tried, passed

_PIN = "take a version with a wheel, or pin what it is built with and name --no-build-isolation"
_SHOWN = 6
# The last pip that builds a legacy source distribution with what is installed; later ones isolate:
# https://pip.pypa.io/en/stable/news/#v23-1
_LEGACY_UNTIL = (23, 1)
# What the distribution's Python has, and a virtual environment of it before 3.12:
# https://docs.python.org/3/library/venv.html
_OF_DISTRIBUTION = frozenset({"setuptools"})
_VENV_IS_EMPTY_SINCE = (3, 12)

Resolution = tuple[Resolved, ...] | OutOfReach | Unresolvable


class PythonTrials:
    """Tries the `pip install`s of many images; what several have in common is resolved once."""

    def __init__(self, resolver: Resolver, ask: Ask) -> None:
        self._resolver, self._ask = resolver, ask
        self._resolve = functools.cache(self._resolved)

    def of(self, steps: Iterable[Step], target: Target | None) -> Iterator[Trial]:
        """A trial for each command that installs from an index, and for what is from elsewhere."""
        if target is None:
            yield from _unknown_python(steps)
            return
        for command in pip_installs(steps, target):
            if command.others and command.with_dependencies:
                yield _from_elsewhere(command)
            if command.requirements:
                yield self._trial(command)

    def packages(self, command: PipInstall) -> tuple[Resolved, ...]:
        """What a command installs from the index; nothing where that cannot be said."""
        if not command.requirements or self._silent_index(command):
            return ()
        found = self._resolve(command.requirements, command.target, _options(command))
        return found if isinstance(found, tuple) else ()

    def _trial(self, command: PipInstall) -> Trial:
        subject, line = command.subject, command.step.line
        if misplaced := _misplaced(command):
            return failed(PYTHON, subject, misplaced, line)
        if reason := self._silent_index(command):
            return not_tried(PYTHON, subject, reason, line)
        found = self._resolve(command.requirements, command.target, _options(command))
        if isinstance(found, OutOfReach):
            return not_tried(PYTHON, subject, str(found), line)
        if isinstance(found, Unresolvable):
            return failed(PYTHON, subject, f"{command.target.short}: {found}", line)
        loose = [text for package in found if (text := _loosely_built(package, command))]
        if loose:
            return failed(
                PYTHON, subject, f"{command.target.short}: {'; '.join(loose)}", line, _PIN
            )
        return passed(PYTHON, subject, _summary(command.target, found), line)

    def _silent_index(self, command: PipInstall) -> str:
        """Why an index that a command names cannot be asked; empty where each can be."""
        for url in filter(None, (command.index, *command.extra_indexes)):
            answer = self._ask(f"{url.rstrip('/')}/")
            if answer.has is None:
                return f"the index {url} was not asked: {answer.text}"
        return ""

    def _resolved(
        self, requirements: tuple[str, ...], target: Target, options: tuple[str, ...]
    ) -> Resolution:
        try:
            return self._resolver.resolve(requirements, target, options)
        except (OutOfReach, Unresolvable) as reason:
            return reason


def _options(command: PipInstall) -> tuple[str, ...]:
    """The options of a command that decide what is installed."""
    index = ("--index-url", command.index) if command.index else ()
    extra = (word for url in command.extra_indexes for word in ("--extra-index-url", url))
    return (*index, *extra, *(() if command.with_dependencies else ("--no-deps",)))


def _misplaced(command: PipInstall) -> str:
    """What is known of a package that no index of the command has; empty if nothing is."""
    named = (command.index, *command.extra_indexes)
    for requirement in map(Requirement, command.requirements):
        for row in PUBLISHERS_INDEXES:
            is_it = canonicalize_name(requirement.name) == row.package
            versions = [one.version for one in requirement.specifier if one.operator == "=="]
            concerned = is_it and all(SpecifierSet(row.versions).contains(one) for one in versions)
            if concerned and not any(url.startswith(row.url) for url in named):
                return f"{requirement} is in an index such as {row.example} ({row.source})"
    return ""


def _loosely_built(package: Resolved, command: PipInstall) -> str:
    """What a package is compiled with that nothing pins; empty where all of it is pinned."""
    if package.source is None:
        return ""
    needed = [Requirement(text) for text in package.source.build_requires]
    if _builds_with_installed(package.source, command):
        if command.is_isolated:  # `setup.py install` does without wheel
            needed = [Requirement("setuptools")]
        wrong = [str(one) for one in needed if not _is_installed(one, command)]
        how = "no command before it pins that"
    else:
        wrong = [str(one) for one in needed if not _is_exact(one)]
        how = "the newest of it is taken, whichever that is on the day"
    if not wrong:
        return ""
    what = f"{package.name} {package.version} has no wheel"
    return f"{what} and is compiled with {', '.join(wrong)}: {how}"


def _builds_with_installed(source: SourceDistribution, command: PipInstall) -> bool:
    """Return whether pip builds with the environment's own packages, and not in an isolated one."""
    old_pip = version_order(command.target.pip) < _LEGACY_UNTIL
    return not command.is_isolated or (source.is_legacy and old_pip)


def _is_installed(requirement: Requirement, command: PipInstall) -> bool:
    """Return whether a version that a build wants is pinned, or the distribution's own."""
    name = canonicalize_name(requirement.name)
    if not _applies(requirement, command.target):
        return True
    if name in command.installed:
        return requirement.specifier.contains(command.installed[name])
    brought = command.target.series < _VENV_IS_EMPTY_SINCE if command.environment else True
    return brought and name in _OF_DISTRIBUTION


def _applies(requirement: Requirement, target: Target) -> bool:
    """Return whether a requirement is one for the target's Python and machine, by its marker."""
    if requirement.marker is None:
        return True
    series = ".".join(map(str, target.series))
    return requirement.marker.evaluate(
        {
            "python_version": series,
            "python_full_version": target.python,
            "platform_machine": target.arch,
            "platform_python_implementation": "CPython",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "extra": "",
        }
    )


def _is_exact(requirement: Requirement) -> bool:
    return any(one.operator in {"==", "==="} for one in requirement.specifier)


def _summary(target: Target, found: tuple[Resolved, ...]) -> str:
    """Return how many packages there are, and which of them are compiled."""
    built = [f"{one.name} {one.version}" for one in found if one.source]
    wheels = len(found) - len(built)
    text = f"{target.short}: {counted(wheels, 'wheel')}"
    return f"{text}; compiled with what is pinned: {', '.join(built)}" if built else text


def _from_elsewhere(command: PipInstall) -> Trial:
    what = " ".join(command.others[:_SHOWN])
    reason = "its requirements are in files that are not from an index"
    return not_tried(PYTHON, f"pip install {what}", reason, command.step.line)


def _unknown_python(steps: Iterable[Step]) -> Iterator[Trial]:
    unknown = Target(arch="", python="", pip="", glibc="")
    for command in pip_installs(steps, unknown):
        reason = "the tables of facts do not say which Python the distribution has"
        yield not_tried(PYTHON, command.subject, reason, command.step.line)
