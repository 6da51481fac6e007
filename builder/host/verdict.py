"""The verdict on an image and a host: an answer for each rule, with reason and fix."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from builder.facts import MPI_FAMILIES, Facts
from builder.facts.software import APART
from builder.host.records import Host, HostMpi
from builder.model.contract import HostContract, NeededMpi, SiteAnswer
from builder.system.files import table_beside
from builder.system.terminal import BOLD, GREEN, RED, YELLOW, Paint, printable

YES, NO, UNKNOWN = "yes", "no", "cannot tell"

# Ways to start the ranks of an MPI program: by the launcher in the image, all in one container; by
# the host's launcher, each in its own container; the same, with the host's MPI bound into each.
IN_CONTAINER, HYBRID, BIND = "in-container", "hybrid", "bind"
LAUNCHERS = (IN_CONTAINER, HYBRID, BIND)

SCHEMA = "build-images/check-host/v1"
_COLOURS = {YES: GREEN, NO: RED, UNKNOWN: YELLOW}
_MARKS = {YES: "✓", NO: "✗", UNKNOWN: "?"}
_WIDTH = 100


@cache
def _sentences() -> Mapping[str, Mapping[str, str]]:
    """Return the rows of answers.yaml by name; a row of plain text is a reason without a fix."""
    rows = table_beside(__file__, "answers.yaml")
    return {name: {"reason": row} if isinstance(row, str) else row for name, row in rows.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleAnswer:
    """The answer for a rule with its reason; `fix` would make it yes. `judge` sets `rule`.

    `command` starts a program in IMAGE, or the ranks of one; `before` is needed once before it.
    """

    rule: str = ""
    answer: str
    reason: str
    fix: str = ""
    command: str = ""
    before: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleCase:
    """An image and a host for the rules. `emulated` is true if emulation is allowed.

    `yes`, `no` and `unknown` answer with the sentences of a row of answers.yaml; `parts` are values
    in them that come from neither the image nor the host.
    """

    contract: HostContract
    host: Host
    facts: Facts
    emulated: bool = False

    @property
    def is_foreign(self) -> bool:
        """True if image and host are known to have different architectures."""
        return self.host.architecture not in (None, self.contract.architecture)

    def yes(self, row: str, /, **parts: object) -> RuleAnswer:
        return self._answer(YES, row, parts)

    def no(self, row: str, /, **parts: object) -> RuleAnswer:
        return self._answer(NO, row, parts)

    def unknown(self, row: str, /, **parts: object) -> RuleAnswer:
        return self._answer(UNKNOWN, row, parts)

    def _answer(self, answer: str, row: str, parts: Mapping[str, object]) -> RuleAnswer:
        values = {
            "image": self.contract,
            "cuda": self.contract.cuda,
            "mpi": self.contract.mpi,
            "inside": title_of(self.contract.mpi) if self.contract.mpi else "",
            "host": self.host,
            "gpu": self.host.gpu,
            **parts,
        }
        sentences = {key: text.format_map(values) for key, text in _sentences()[row].items()}
        return RuleAnswer(answer=answer, **sentences)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostVerdict:
    """All answers for one image and one host.

    All `rules` must be met, one of the requested `runtimes` and one of the requested `launchers`.
    `emulated` is true if programs would run emulated, and not natively.
    """

    image: str
    host: str
    rules: tuple[RuleAnswer, ...]
    runtimes: tuple[RuleAnswer, ...]
    launchers: tuple[RuleAnswer, ...]
    emulated: bool = False

    @property
    def answer(self) -> str:
        return all_of([all_of_answers(self.rules), any_of(self.runtimes), any_of(self.launchers)])

    @property
    def several_nodes(self) -> str:
        """The answer for ranks on several nodes; empty if no such launcher was requested.

        The image's own launcher starts all ranks in one container, on one node.
        """
        ways = [answer for answer in self.launchers if answer.rule in (HYBRID, BIND)]
        answers = [all_of_answers(self.rules), any_of(self.runtimes), any_of(ways)]
        return all_of(answers) if ways else ""

    @property
    def decisive(self) -> tuple[RuleAnswer, ...]:
        """The answers that decided a verdict of no or unknown."""
        groups = [each for each in (self.runtimes, self.launchers) if any_of(each) == self.answer]
        candidates = [*self.rules, *(answer for group in groups for answer in group)]
        return tuple(answer for answer in candidates if answer.answer == self.answer != YES)

    @property
    def runtime(self) -> RuleAnswer:
        """The runtime with the best answer; of several, one that the host's launcher reaches."""
        best = [each for each in self.runtimes if each.answer == any_of(self.runtimes)]
        return min(best, key=lambda each: each.rule in APART)

    @property
    def at_site(self) -> SiteAnswer:
        """The answer with the commands that start a program there."""
        runtime = self.runtime
        if self.answer == NO or not runtime.command:
            runtime = RuleAnswer(answer=NO, reason="")
        return SiteAnswer(
            site=self.host,
            answer=self.answer,
            reasons=tuple((each.rule, each.reason, each.fix) for each in self.decisive),
            runtime=runtime.rule,
            before=runtime.before,
            commands=tuple(self._commands(runtime)) if runtime.command else (),
        )

    def _commands(self, runtime: RuleAnswer) -> Iterator[tuple[str, str]]:
        ways = (IN_CONTAINER,) if runtime.rule in APART else (IN_CONTAINER, HYBRID)
        for launcher in self.launchers:
            if launcher.answer == any_of(self.launchers) and launcher.rule in ways:
                first, second = launcher.command, runtime.command
                if launcher.rule == IN_CONTAINER:
                    first, second = second, first
                yield launcher.rule, " ".join(filter(None, (first, second, "./program")))


def title_of(mpi: NeededMpi | HostMpi) -> str:
    """Return an MPI's name and, if known, its version."""
    return f"{MPI_FAMILIES[mpi.family].title} {mpi.version}".strip()


def all_of(answers: Iterable[str]) -> str:
    """Return no if one answer is no; else unknown if one is unknown."""
    unique = {*answers}
    return NO if NO in unique else UNKNOWN if UNKNOWN in unique else YES


def all_of_answers(answers: Iterable[RuleAnswer]) -> str:
    """Return the result of `all_of` for answers with reasons."""
    return all_of(answer.answer for answer in answers)


def any_of(answers: Iterable[RuleAnswer]) -> str:
    """Return yes if one answer is yes; else unknown if one is unknown."""
    unique = {answer.answer for answer in answers}
    return YES if YES in unique else UNKNOWN if UNKNOWN in unique else NO


def named(rule: str, answer: RuleAnswer) -> RuleAnswer:
    """Return the answer with the name of its rule."""
    return replace(answer, rule=rule)


def as_json(verdict: HostVerdict) -> str:
    """Return all answers with reasons and fixes as JSON."""
    site = verdict.at_site
    document = {
        "schema": SCHEMA,
        "image": verdict.image,
        "host": verdict.host,
        "answer": verdict.answer,
        "several_nodes": verdict.several_nodes or None,
        "emulated": verdict.emulated,
        **{
            name: [
                {key: getattr(answer, key) for key in ("rule", "answer", "reason", "fix")}
                for answer in getattr(verdict, name)
            ]
            for name in ("rules", "runtimes", "launchers")
        },
        "runtime": site.runtime or None,
        "before": site.before or None,
        "commands": dict(site.commands),
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def as_text(verdict: HostVerdict, *, colour: bool) -> str:
    """Return the answer for each rule, then the verdict; without a final newline."""
    paint = Paint(colour)
    width = max(len(each.rule) for each in (*verdict.rules, *verdict.runtimes, *verdict.launchers))
    title = f"{verdict.image} on {verdict.host or 'a host without a name'}"
    return "\n".join(
        [
            paint(printable(title), BOLD),
            *_rows(verdict.rules, width, paint),
            "started by one of",
            *_rows(verdict.runtimes, width, paint),
            "ranks launched by one of",
            *_rows(verdict.launchers, width, paint),
            "",
            *_closing(verdict, paint),
        ]
    )


def _rows(answers: Iterable[RuleAnswer], width: int, paint: Paint) -> list[str]:
    rows = []
    for answer in answers:
        mark = f"{_MARKS[answer.answer]} {answer.answer:11}"
        indent = 2 + len(mark) + 1 + width + 2
        lines = _wrapped(answer.reason, indent)
        if answer.fix:
            lines += _wrapped(f"fix: {answer.fix}", indent)
        mark = paint(mark, _COLOURS[answer.answer])
        rows.append(f"  {mark} {answer.rule:{width}}  {lines[0]}")
        rows += [" " * indent + line for line in lines[1:]]
    return rows


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(printable(text), max(_WIDTH - indent, 40), break_on_hyphens=False) or [""]


def _closing(verdict: HostVerdict, paint: Paint) -> list[str]:
    answer = paint(verdict.answer, _COLOURS[verdict.answer])
    if verdict.answer != YES:
        names = ", ".join(dict.fromkeys(answer.rule for answer in verdict.decisive))
        text = ": it does not run here" if verdict.answer == NO else " whether it runs here"
        return [f"{answer}{text}: {names}"]
    text = "emulated, not native" if verdict.emulated else "it runs here"
    way = next(answer.rule for answer in verdict.launchers if answer.answer == YES)
    lines = [f"{answer}: {text} ({verdict.runtime.rule}, {way})"]
    site = verdict.at_site
    commands = [*((("once", site.before),) if site.before else ()), *site.commands]
    lines += [f"  {name:{len(IN_CONTAINER)}}  {command}" for name, command in commands]
    if (several := verdict.several_nodes) not in ("", YES):
        names = ", ".join(answer.rule for answer in verdict.launchers if answer.answer == several)
        text = "it runs on one node, but not on several"
        if several == UNKNOWN:
            text = "whether it also runs on several nodes"
        lines.append(f"{paint(several, _COLOURS[several])}: {text}: {names}")
    return lines
