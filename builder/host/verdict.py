"""What a check of a host comes to: an answer to each rule, with the reason and the fix."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from builder.facts import Facts
from builder.host.records import Host
from builder.model.contract import HostContract
from builder.system.terminal import printable

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


SCHEMA = "build-images/check-host/v1"
_GREEN, _RED, _YELLOW, _BOLD = "32", "31", "33", "1"
_COLOURS = {YES: _GREEN, NO: _RED, UNKNOWN: _YELLOW}
_MARKS = {YES: "✓", NO: "✗", UNKNOWN: "?"}
_WIDTH = 100


def as_json(verdict: Verdict) -> str:
    """Every answer with its reason and its fix, for programs."""
    document = {
        "schema": SCHEMA,
        "image": verdict.image,
        "host": verdict.host,
        "answer": verdict.answer,
        "several_nodes": verdict.several_nodes or None,
        "emulated": verdict.emulated,
        **{
            name: [asdict(one) for one in getattr(verdict, name)]
            for name in ("rules", "runtimes", "launchers")
        },
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def as_text(verdict: Verdict, *, colour: bool) -> str:
    """Rule by rule, then all together; without a newline at its end."""
    everything = (*verdict.rules, *verdict.runtimes, *verdict.launchers)
    width = max(len(one.rule) for one in everything)
    host = verdict.host or "a host without a name"
    lines = [_bold(printable(f"{verdict.image} on {host}"), colour)]
    for title, some in (
        ("", verdict.rules),
        ("started by, one of", verdict.runtimes),
        ("its MPI launched, one way of", verdict.launchers),
    ):
        lines += [title] if title else []
        for one in some:
            lines += _row(one, width, colour)
    return "\n".join([*lines, "", *_closing(verdict, colour)])


def _row(one: Finding, width: int, colour: bool) -> list[str]:
    answer = f"{_MARKS[one.answer]} {one.answer:11}"
    head = f"  {_painted(answer, _COLOURS[one.answer], colour)} {one.rule:{width}}  "
    indent = 2 + len(answer) + 1 + width + 2
    lines = _wrapped(one.reason, indent)
    if one.fix and one.answer != YES:
        lines += _wrapped(f"fix: {one.fix}", indent)
    return [head + lines[0], *(" " * indent + line for line in lines[1:])]


def _closing(verdict: Verdict, colour: bool) -> list[str]:
    answer = _painted(verdict.answer, _COLOURS[verdict.answer], colour)
    if verdict.answer == YES:
        how = "emulated, not native" if verdict.emulated else "it runs here"
        ways = [_first(verdict.runtimes), _first(verdict.launchers)]
        return [f"{answer}: {how} ({', '.join(ways)})", *_on_several_nodes(verdict, colour)]
    names = ", ".join(dict.fromkeys(one.rule for one in verdict.decisive))
    what = "it must not run here" if verdict.answer == NO else "whether it runs here"
    return [f"{answer}{': ' if verdict.answer == NO else ' '}{what}: {names}"]


def _on_several_nodes(verdict: Verdict, colour: bool) -> list[str]:
    """What holds for one node alone."""
    if verdict.several_nodes in ("", YES):
        return []
    answer = _painted(verdict.several_nodes, _COLOURS[verdict.several_nodes], colour)
    asked = [one.rule for one in verdict.launchers if one.answer == verdict.several_nodes]
    what = "on one node alone, on several it does not"
    if verdict.several_nodes == UNKNOWN:
        what = "whether on several nodes, too"
    return [f"{answer}: {what}: {', '.join(asked)}"]


def _first(some: Sequence[Finding]) -> str:
    return next(one.rule for one in some if one.answer == YES)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(printable(text), max(_WIDTH - indent, 40), break_on_hyphens=False) or [""]


def _bold(text: str, colour: bool) -> str:
    return _painted(text, _BOLD, colour)


def _painted(text: str, code: str, colour: bool) -> str:
    return f"\033[{code}m{text}\033[0m" if colour else text
