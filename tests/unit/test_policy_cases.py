"""Recorded cases: each is judged as it says; every rule is seen to refuse and to pass."""

from __future__ import annotations

import pytest
from samples import ROOT

from builder.policy.cases import Case, read_cases, try_case
from builder.policy.judging import RULE_NAMES
from builder.policy.outcomes import PASSED, REFUSED

CASES = read_cases(ROOT / "tests/data/policy/cases")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_judged_as_it_says(case: Case) -> None:
    tried = try_case(case, None)
    assert tried.wrong == ()
    assert case.expected.keys() == set(RULE_NAMES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_refusal_says_what_can_be_done(case: Case) -> None:
    for one in try_case(case, None).rulings:
        assert one.reason
        assert bool(one.fix) == (one.result == REFUSED)
        assert "\n" not in one.reason


def test_every_rule_is_seen_to_pass_and_to_refuse() -> None:
    seen = {(rule, result) for case in CASES for rule, result in case.expected.items()}
    assert {(rule, PASSED) for rule in RULE_NAMES} <= seen
    assert {(rule, REFUSED) for rule in RULE_NAMES} <= seen
    assert len(CASES) >= 25
