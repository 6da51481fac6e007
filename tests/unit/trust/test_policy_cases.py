"""Recorded cases: each is judged as it says; every rule is seen to refuse and to pass."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samples import ROOT, compare_with_golden

from builder.model.errors import BadInput
from builder.trust.policy.cases import PolicyCase, as_case, read_cases, try_case
from builder.trust.policy.evidence import decided_checks
from builder.trust.policy.judgement import RULES, judge, times_of
from builder.trust.policy.records import (
    BILL,
    EVIDENCE,
    NO,
    NOT_ASKED,
    OTHER,
    PASSED,
    PROVENANCE,
    REFUSED,
    SIGNATURE,
    Bill,
    Claim,
    Contract,
    Evidence,
    Gathered,
    Image,
    Package,
    PackageIndices,
    Previous,
    Provenance,
    PulledFor,
    Ruling,
    as_lines,
    refused,
)
from builder.trust.policy.rules import tree
from builder.trust.policy.site_policy import Policy, RequiredHosts, RequiredProvenance

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


def test_what_a_case_need_not_say(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no case"):
        read_cases(tmp_path)
    with pytest.raises(BadInput, match="not a folder of cases"):
        read_cases(tmp_path / "lost")
    run = {
        "finished": "2026-11-20T10:00:00Z",
        "format": "sif",
        "architecture": "ppc64le",
        "outcomes": {"mpi": "passed"},
    }
    case = {
        "schema": "build-images/policy-case/v1",
        "format": "sif",
        "now": "2026-11-20T10:00:00Z",
        "image": {"digest": "sha256:1", "architecture": "ppc64le"},
        "proofs": [
            {"kind": "signature"},
            {"kind": "evidence", "evidence": {**run, "packages": {"date": run["finished"]}}},
            {"kind": "provenance", "provenance": {"builder": "ci"}},
            {"kind": "sbom", "sbom": {"packages": [{"name": "libc"}]}},
        ],
        "expected": {},
    }
    (tmp_path / "least.json").write_text(json.dumps(case))
    (tmp_path / "notes.txt").write_text("no case")
    (tmp_path / "other.yml").write_text(json.dumps(case))
    found, other = read_cases(tmp_path)
    assert (other.name, other.expected) == ("other", {})
    contents: dict[str, Any] = {
        SIGNATURE: None,
        EVIDENCE: Evidence(
            started=None,
            finished=FINISHED,
            format="sif",
            runner="",
            launcher="",
            emulated=False,
            architecture="ppc64le",
            outcomes={"mpi": "passed"},
            driver="",
            capabilities=(),
            tree="",
            packages=PackageIndices(date=FINISHED, behind_days=0),
        ),
        PROVENANCE: Provenance(builder="ci", sources=(), finished=None, recipe="", tag=""),
        BILL: Bill(packages=(Package(name="libc", version="", licences=()),), complete=True),
    }
    claims = tuple(
        Claim(kind=kind, subjects=(), key="", signer="", fault="", digest="", content=content)
        for kind, content in contents.items()
    )
    image = Image(
        digest="sha256:1", architecture="ppc64le", asked="ppc64le", index="", created=None
    )
    gathered = Gathered(
        reference="registry.example/image:tag",
        format="sif",
        now=FINISHED,
        image=image,
        artifact="",
        proofs=claims,
        host=PulledFor(capabilities=None, driver=None),
        contract=None,
        previous=None,
    )
    assert found == PolicyCase(name="least", about="", policy=None, expected={}, gathered=gathered)
    with pytest.raises(BadInput, match="least: no policy in this case"):
        try_case(found, None)


def test_all_faults_of_a_case_are_told_at_once(tmp_path: Path) -> None:
    run = {
        "finished": "yesterday",
        "started": "2026-11-20T10:00:00",
        "format": "sfi",
        "architecture": "power",
        "outcomes": {"mpi": "pass"},
        "emulated": "no",
        "capabilities": [7],
        "packages": {"date": "", "behind_days": -1},
    }
    case = {
        "schema": "build-images/policy-case/v1",
        "format": "sif",
        "now": "2026-11-20T10:00:00Z",
        "image": {"architecture": "x86", "asked": 1, "created": "then", "size": 1},
        "proofs": [
            {"kind": "signatur"},
            {"kind": "evidence", "evidence": run, "subject": []},
            {"kind": "evidence", "sbom": {}},
            {"kind": "provenance", "provenance": {"sources": "a"}},
            {"kind": "sbom", "sbom": {"packages": [{"version": "1"}], "complete": 1}},
        ],
        "host": {"capabilities": "7.0", "driver": []},
        "contract": {"answer": "maybe", "reasons": 1},
        "previous": {"times": {"evidenc": "2026-11-20T10:00:00Z", "created": "then"}},
        "expected": {"idenity": "passed", "signature": "refuse"},
    }
    (tmp_path / "wrong.json").write_text(json.dumps(case, indent=1))
    with pytest.raises(BadInput) as raised:
        read_cases(tmp_path)
    compare_with_golden(
        f"{raised.value}\n".replace(str(tmp_path), "CASES"), "policy/case-faults.txt"
    )


def test_every_rule_is_seen_to_pass_and_to_refuse() -> None:
    seen = {(rule, result) for case in CASES for rule, result in case.expected.items()}
    assert {(rule, PASSED) for rule in RULES} <= seen
    assert {(rule, REFUSED) for rule in RULES} <= seen
    assert len(CASES) >= 25


BY_NAME = {case.name: case for case in CASES}
FINISHED = dt.datetime(2026, 11, 20, 10, tzinfo=dt.timezone.utc)
INDEXED = dt.datetime(2026, 11, 14, 9, tzinfo=dt.timezone.utc)
SECOND, MONTH = dt.timedelta(seconds=1), dt.timedelta(days=30)


def ruled(name: str, rule: str, *, policy: dict[str, Any], **facts: Any) -> Ruling:
    """A rule's ruling in a case with other facts; `policy` changes what it asks of evidence."""
    case = BY_NAME[name]
    assert case.policy
    changed = replace(case.policy, evidence=replace(case.policy.evidence, **policy))
    rulings = judge(changed, replace(case.gathered, **facts)).rulings
    return next(ruling for ruling in rulings if ruling.rule == rule)


@pytest.mark.parametrize(
    ("name", "rule", "facts", "days", "result"),
    [
        ("proven", "age", {"now": FINISHED + 3 * MONTH}, None, PASSED),
        ("proven", "age", {"now": FINISHED + 3 * MONTH + SECOND}, None, REFUSED),
        ("proven", "dates", {"now": FINISHED - 300 * SECOND}, None, PASSED),
        ("proven", "dates", {"now": FINISHED - 301 * SECOND}, None, REFUSED),
        ("packages-young", "package index", {"now": INDEXED + MONTH}, 30, PASSED),
        ("packages-young", "package index", {"now": INDEXED + MONTH + SECOND}, 30, REFUSED),
        ("packages-behind", "package index", {}, 70, PASSED),
        ("packages-behind", "package index", {}, 69, REFUSED),
        ("no-evidence", "package index", {}, 30, NOT_ASKED),
    ],
)
def test_what_is_as_old_as_allowed_is_allowed(
    name: str, rule: str, facts: dict[str, Any], days: int | None, result: str
) -> None:
    policy = {"max_index_age": dt.timedelta(days=days)} if days else {}
    assert ruled(name, rule, policy=policy, **facts).result == result


@pytest.mark.parametrize(
    ("kind", "time"),
    [
        ("provenance", "provenance time"),
        ("created", "creation time"),
        ("evidence", "evidence time"),
    ],
)
def test_which_image_is_newer_is_told_by_the_times_of_both(kind: str, time: str) -> None:
    case = BY_NAME["proven"].gathered
    gathered = replace(case, image=replace(case.image, created=INDEXED))
    times = times_of(gathered)
    built = dt.datetime(2026, 11, 19, 10, tzinfo=dt.timezone.utc)
    assert times == {"provenance": built, "evidence": FINISHED, "created": INDEXED}
    for last, result, reason in (
        (times[kind] - SECOND, PASSED, f"newer than the last pulled image by {time}: "),
        (times[kind] + SECOND, REFUSED, f"older than the last pulled image by {time}: "),
        (times[kind], REFUSED, "not the last pulled image (sha256:1), and it is unknown "),
    ):
        facts = {
            "image": gathered.image,
            "previous": Previous(digest="sha256:1", times={kind: last}),
        }
        ruling = ruled("proven", "rollback", policy={}, **facts)
        assert (ruling.result, ruling.reason[: len(reason)]) == (result, reason)
    ruling = ruled("nothing", "rollback", policy={}, previous=facts["previous"])
    reason = f"the last pulled image has a {time}, but this image has none"
    assert (ruling.result, ruling.reason) == (REFUSED, reason)


@pytest.mark.parametrize("first", ["passed", "skipped"])
def test_of_runs_that_ended_in_one_second_the_worst_decides(first: str) -> None:
    runs = [
        Evidence(finished=FINISHED - ago, format="sif", architecture="x86_64", outcomes={"a": one})
        for one, ago in (
            (first, SECOND * 0),
            ({"passed": "skipped", "skipped": "passed"}[first], SECOND * 0),
            ("passed", SECOND),
        )
    ]
    assert decided_checks(runs)["a"].outcome == "skipped"
    assert decided_checks(runs[2:] + runs[:2])["a"].run == runs[2]
    failed = replace(runs[0], outcomes={"a": "failed"})
    for pair in ([failed, replace(runs[2], finished=FINISHED)], [runs[2], failed]):
        assert decided_checks(pair)["a"].outcome == "failed"
    assert decided_checks([replace(runs[2], finished=FINISHED + SECOND), failed])["a"].outcome == (
        "passed"
    )


@pytest.mark.parametrize(
    ("keys", "number"),
    [
        ({"a": "1"}, 1),
        ({"a": "12"}, 1),
        ({"a": "12", "b": "1"}, 2),
        ({"a": "1", "b": "12"}, 2),
        ({"a": "1", "b": "1"}, 1),
        ({"a": "12", "b": "12", "c": "12"}, 2),
        ({"a": "12", "b": "13", "c": "1"}, 3),
    ],
)
def test_a_key_and_a_signer_count_once(keys: dict[str, str], number: int) -> None:
    """By signer, the keys of the policy that its certificate matches."""
    proofs = tuple(
        Claim(kind=SIGNATURE, subjects=(ABOUT.digest,), key=key, signer=signer)
        for signer in keys
        for key in keys[signer]
    )
    gathered = replace(BY_NAME["proven"].gathered, image=ABOUT, proofs=proofs)
    [ruling] = [
        ruling
        for ruling in judge(Policy(keys=(), signatures=number), gathered).rulings
        if ruling.rule == "signature"
    ]
    assert (ruling.result, ruling.reason.count(",")) == (PASSED, number - 1)
    [ruling] = [
        ruling
        for ruling in judge(Policy(keys=(), signatures=number + 1), gathered).rulings
        if ruling.rule == "signature"
    ]
    assert ruling.reason.startswith(f"{number} of {number + 1} required signatures by keys")


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
    ("architectures", "result"), [((), PASSED), (("x86_64",), PASSED), (("aarch64",), REFUSED)]
)
def test_evidence_is_of_the_architectures_that_a_site_asks_for(
    architectures: tuple[str, ...], result: str
) -> None:
    policy = {"hosts": RequiredHosts(architectures=architectures)}
    ruling = ruled("proven", "evidence", policy=policy)
    assert ruling.result == result
    other = "no evidence for sif on this class of hosts: 1 is from a host of another architecture"
    assert ruling.reason == f"{other} (x86_64)" or result == PASSED


@pytest.mark.parametrize(
    ("tag", "result", "note"),
    [
        ("1.0-debian13-openmpi5.0", PASSED, ""),
        ("1.0", PASSED, "; 1.0 is a floating tag: only the recipe is compared"),
        ("nightly-debian13", PASSED, "; nightly-debian13 is a floating tag: only the recipe is "),
        ("2.0-debian13", REFUSED, "requested hpc-base 2.0-debian13, but this is hpc-base 1.0-"),
    ],
)
def test_a_tag_that_is_no_cells_may_float(tag: str, result: str, note: str) -> None:
    reference = f"registry.example/site/hpc-base:{tag}"
    ruling = ruled("proven", "identity", policy={}, reference=reference)
    assert (ruling.result, note in ruling.reason) == (result, True)
    assert ";" in ruling.reason or not note or result == REFUSED


@pytest.mark.parametrize(
    ("driver", "result"),
    [("550.54.15", PASSED), ("550", PASSED), ("55.0", REFUSED), ("", REFUSED), (None, REFUSED)],
)
def test_evidence_is_of_this_hosts_driver_branch(driver: str | None, result: str) -> None:
    host = PulledFor(capabilities=(70,), driver=driver)
    assert ruled("driver-branch", "evidence", policy={}, host=host).result == result


def test_all_builders_and_sources_that_are_not_accepted_are_told() -> None:
    builds = [("ci", ("a", "b")), ("desk", ())]
    proofs = [
        Claim(
            kind=PROVENANCE,
            subjects=(ABOUT.digest,),
            key="site.pub",
            content=Provenance(builder=builder, sources=sources, recipe=f"of-{builder}", tag="1"),
        )
        for builder, sources in builds
    ]
    policy = Policy(keys=(), provenance=RequiredProvenance(builders=("other",)))
    gathered = Gathered(
        reference="registry.example/tool",
        format="oci",
        now=FINISHED,
        image=ABOUT,
        proofs=tuple(proofs),
    )
    gathered = replace(gathered, contract=Contract(answer=NO, reasons=("old", "small")))
    reasons = {one.rule: one.reason for one in judge(policy, gathered).rulings}
    assert reasons["host contract"] == "no: old; small"
    assert reasons["provenance"] == "built by ci from a, b; desk from no source"
    assert reasons["identity"] == "requested tool, but this is of-ci 1, of-desk 1"


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
