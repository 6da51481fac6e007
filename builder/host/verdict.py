"""What a check of a host comes to: an answer to each rule, with the reason and the fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from builder.facts import Facts
from builder.host.record import Host
from builder.model.contract import HostContract

YES, NO, UNKNOWN = "yes", "no", "cannot tell"

# How the ranks of an MPI program are started: by the launcher in the image, in one container; by
# the host's launcher, each in a container of its own; or so, with the host's MPI bound into each.
IN_CONTAINER, HYBRID, BIND = "in-container", "hybrid", "bind"
LAUNCHERS = (IN_CONTAINER, HYBRID, BIND)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The answer to one rule. `reason` says why; `fix` what would make it a yes."""

    rule: str
    answer: str
    reason: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What a rule looks at. `emulated` is whether emulation was asked for."""

    contract: HostContract
    host: Host
    facts: Facts
    emulated: bool = False

    @property
    def is_foreign(self) -> bool:
        """True if the image is known to be of another architecture than the host."""
        return self.host.architecture not in (None, self.contract.architecture)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """All answers for one image and one host.

    All of `rules` must be met, one of `runtimes` and one of `launchers`, which are those that were
    asked for. `emulated` is whether programs would run emulated; they are never native then.
    """

    image: str
    host: str
    rules: tuple[Finding, ...]
    runtimes: tuple[Finding, ...]
    launchers: tuple[Finding, ...]
    emulated: bool = False

    @property
    def answer(self) -> str:
        """The answer to all of it together."""
        return all_of([*(one.answer for one in self.rules), *map(any_of, self.choices)])

    @property
    def several_nodes(self) -> str:
        """The answer for ranks on several nodes; empty where no such way was looked at.

        The image's own launcher starts ranks in one container, on one node.
        """
        ways = [one.answer for one in self.launchers if one.rule in (HYBRID, BIND)]
        elsewhere = [one.answer for one in self.rules], [any_of(self.choices[0])]
        return all_of([*elsewhere[0], *elsewhere[1], any_of(ways)]) if ways else ""

    @property
    def choices(self) -> tuple[list[str], ...]:
        """The answers of which one has to be a yes."""
        both = (self.runtimes, self.launchers)
        return tuple([one.answer for one in some] for some in both)

    @property
    def decisive(self) -> tuple[Finding, ...]:
        """The findings that made the answer what it is; none if it is yes."""
        found = [one for one in self.rules if one.answer == self.answer]
        for some in (self.runtimes, self.launchers):
            if any_of(one.answer for one in some) == self.answer:
                found += [one for one in some if one.answer == self.answer]
        return () if self.answer == YES else tuple(found)


def all_of(answers: Iterable[str]) -> str:
    """One no is a no; else one unknown is unknown."""
    found = {*answers}
    return NO if NO in found else UNKNOWN if UNKNOWN in found else YES


def any_of(answers: Iterable[str]) -> str:
    """One yes is a yes; else one unknown is unknown."""
    found = {*answers}
    return YES if YES in found else UNKNOWN if UNKNOWN in found else NO


def yes(rule: str, reason: str, fix: str = "") -> Finding:
    return Finding(rule=rule, answer=YES, reason=reason, fix=fix)


def no(rule: str, reason: str, fix: str) -> Finding:
    return Finding(rule=rule, answer=NO, reason=reason, fix=fix)


def unknown(rule: str, reason: str, fix: str) -> Finding:
    return Finding(rule=rule, answer=UNKNOWN, reason=reason, fix=fix)
