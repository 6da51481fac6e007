"""What a rule comes to."""

from __future__ import annotations

from dataclasses import dataclass

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
