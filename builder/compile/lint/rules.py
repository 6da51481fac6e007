"""All rules of our own, in the order of docs/lint.md."""

from __future__ import annotations

from builder.compile.lint import contents, downloads, sameness, stages, syntax
from builder.compile.lint.findings import Problem
from builder.compile.lint.reading import Reading

RULES = (*downloads.RULES, *contents.RULES, *sameness.RULES, *stages.RULES, *syntax.RULES)


def own_problems(reading: Reading) -> list[Problem]:
    """What our own rules find in one spec."""
    return [rule.problem(hit) for rule in RULES for hit in rule.check(reading)]
