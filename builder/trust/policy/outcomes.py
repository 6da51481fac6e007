"""What a rule comes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from builder.system.terminal import printable

PASSED, REFUSED, NOT_ASKED = "passed", "refused", "not asked"
RESULTS = (PASSED, REFUSED, NOT_ASKED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ruling:
    """The outcome of one rule: why, and if it refuses, what can be done."""

    rule: str
    result: str
    reason: str
    fix: str = ""


def passed(rule: str, reason: str) -> Ruling:
    return Ruling(rule=rule, result=PASSED, reason=reason)


def refused(rule: str, reason: str, fix: str) -> Ruling:
    return Ruling(rule=rule, result=REFUSED, reason=reason, fix=fix)


def not_asked(rule: str, reason: str) -> Ruling:
    return Ruling(rule=rule, result=NOT_ASKED, reason=reason)


_LONGEST = 1000  # letters of a reason
_MARKS = {PASSED: "✓", REFUSED: "✗", NOT_ASKED: "-"}


def as_lines(rulings: Iterable[Ruling], *, fixes: bool = True) -> list[str]:
    """A line for each ruling, and one more below a refusal that says what can be done.

    Much of a reason was written by somebody else: it can be printed, steers no terminal, and has an
    end.
    """
    some = list(rulings)
    width = max((len(one.rule) for one in some), default=0)
    lines = []
    for one in some:
        reason = printable(one.reason, most=_LONGEST)
        lines.append(f"  {_MARKS[one.result]} {one.result:9}  {one.rule:{width}}  {reason}")
        if fixes and one.fix and one.result == REFUSED:
            lines.append(" " * (15 + width + 1) + f"fix: {printable(one.fix)}")
    return lines
