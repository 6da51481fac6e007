"""Rulings as text for people: one line a rule, with the reason, and what next if it refuses."""

from __future__ import annotations

from collections.abc import Iterable

from builder.system.terminal import printable
from builder.trust.policy.outcomes import NOT_ASKED, PASSED, REFUSED, Ruling

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
