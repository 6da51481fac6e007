"""A verdict as text for people and as JSON for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from builder.host.verdict import NO, UNKNOWN, YES, Finding, Verdict
from builder.system.terminal import printable

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
