"""Recorded cases: each is judged as it says; every rule is seen to refuse and to pass."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
from samples import ROOT, compare_with_golden

from builder.trust.policy.cases import PolicyCase, as_case, read_cases, try_case
from builder.trust.policy.judgement import RULES, judge
from builder.trust.policy.records import (
    OTHER,
    PASSED,
    REFUSED,
    SIGNATURE,
    Claim,
    Gathered,
    Image,
    as_lines,
    refused,
)
from builder.trust.policy.rules import tree
from builder.trust.policy.site_policy import Policy

CASES = read_cases(ROOT / "tests/data/policy/cases")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_judged_as_it_says(case: PolicyCase) -> None:
    tried = try_case(case, None)
    assert tried.wrong == ()
    assert case.expected.keys() == set(RULES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_refusal_says_what_can_be_done(case: PolicyCase) -> None:
    for ruling in try_case(case, None).rulings:
        assert ruling.reason
        assert bool(ruling.fix) == (ruling.result == REFUSED)
        assert "\n" not in ruling.reason


def test_what_is_told_of_all_cases() -> None:
    """Every word, so that none changes unseen. UPDATE_GOLDEN=1 writes it anew."""
    lines = []
    for case in CASES:
        lines += [case.name, *as_lines(try_case(case, None).rulings), ""]
    text = "\n".join(lines)
    compare_with_golden(text, "policy/cases.txt")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_was_gathered_can_be_tried_again(case: PolicyCase, tmp_path: Path) -> None:
    document = as_case(case.gathered, try_case(case, None).rulings)
    (tmp_path / f"{case.name}.json").write_text(json.dumps(document))
    [again] = read_cases(tmp_path)
    assert again.gathered == case.gathered
    assert again.expected == case.expected


def test_every_rule_is_seen_to_pass_and_to_refuse() -> None:
    seen = {(rule, result) for case in CASES for rule, result in case.expected.items()}
    assert {(rule, PASSED) for rule in RULES} <= seen
    assert {(rule, REFUSED) for rule in RULES} <= seen
    assert len(CASES) >= 25


ABOUT = Image(digest=f"sha256:{'1' * 64}", architecture="x86_64", asked="x86_64")
OF_PROOF = ("identity", "signature", "evidence", "provenance", "sbom")


def fixes_of(*proofs: Claim, policy: Policy | None = None) -> dict[str, str]:
    """What is said to help, by rule, of an image with some proof."""
    now = dt.datetime.now(dt.timezone.utc)
    gathered = Gathered(
        reference="registry.example/tool:1", format="oci", now=now, image=ABOUT, proofs=proofs
    )
    judged = judge(policy or Policy(keys=()), gathered)
    return {ruling.rule: ruling.fix for ruling in judged.refused if ruling.rule in OF_PROOF}


@pytest.mark.parametrize(
    ("proofs", "fix"),
    [
        ([], "ask the publisher of the image to sign it"),
        # It is no matter of what the registry calls its images.
        (
            [Claim(kind=OTHER, fault="not signed by a trusted key")],
            "if you trust the key that signed it, add it to keys in the policy",
        ),
    ],
)
def test_without_a_trusted_signature_nothing_else_helps(proofs: list[Claim], fix: str) -> None:
    fixes = fixes_of(*proofs)
    assert fixes.keys() == set(OF_PROOF)
    assert set(fixes.values()) == {fix}


def test_with_a_signature_each_rule_says_what_it_lacks() -> None:
    fixes = fixes_of(Claim(kind=SIGNATURE, subjects=(ABOUT.digest,), key="site.pub"))
    assert fixes.keys() == set(OF_PROOF) - {"signature"}
    assert "identity: ignored" in fixes["identity"]
    assert "verify it on such a host" in fixes["evidence"]


def test_without_a_rule_for_bills_none_is_asked_for() -> None:
    fixes = fixes_of(policy=Policy(keys=(), bill=None, provenance=None))
    assert fixes.keys() == set(OF_PROOF) - {"sbom", "provenance"}


@pytest.mark.parametrize(
    ("expected", "result", "reason"),
    [
        (ABOUT.digest, PASSED, "sha256:111111111111, as in the evidence"),
        ("", REFUSED, "the evidence names no tree digest"),
        ("sha256:2", REFUSED, "sha256:111111111111, but the evidence is about sha256:2"),
    ],
)
def test_what_was_unpacked_is_what_the_evidence_is_about(
    expected: str, result: str, reason: str
) -> None:
    ruling = tree(expected, ABOUT.digest)
    assert (ruling.rule, ruling.result) == ("tree", result)
    assert ruling.reason.endswith(reason)


def test_a_reason_that_somebody_else_wrote_has_an_end() -> None:
    """Labels of a host contract that is none came to 200,000 letters of reasons."""
    [line, *_] = as_lines([refused("host contract", "x" * 100_000, "ask")])
    assert len(line) < 1100
