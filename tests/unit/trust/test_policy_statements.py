"""Signed statements as values: what is malformed vouches for nothing, and ends nothing."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proof_samples import places

from builder.model import Artifact, Cell, Outcome
from builder.model.exact_json import member, time_of
from builder.model.measurement import HostFacts
from builder.model.predicates import CYCLONEDX, SLSA
from builder.trust.policy.predicates import proof_of
from builder.trust.policy.records import (
    BILL,
    EVIDENCE,
    OTHER,
    PROVENANCE,
    Bill,
    Claim,
    Evidence,
    PackageIndices,
    Provenance,
    as_lines,
    refused,
)
from builder.verify.evidence import RunEvidence

DIGEST = "a1" * 32
HOST = HostFacts(
    arch="ppc64le",
    kernel="4.18",
    cpu="POWER9",
    cores=4,
    os="RHEL",
    driver="418.87",
    gpus=("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
)


def evidence(*, gpu: bool = True, trees: tuple[str, ...] = ("7e" * 32,)) -> dict[str, Any]:
    """As verification writes it."""
    outcomes = [
        Outcome(check=name, outcome=outcome, reason="x", duration_s=1.0)
        for name, outcome in (("mpi", "passed"), ("gpu", "skipped"), ("fio", "failed"))
    ]
    artifacts = [
        Artifact(
            format=name,
            path=Path(name),
            digest=f"sha256:{DIGEST}",
            size=1,
            tree_digest=f"sha256:{entry}",
        )
        for name, entry in zip(("oci", "sif"), (trees * 2)[:2], strict=True)
    ]
    written = RunEvidence(
        identifier="hpc-base",
        artifacts=artifacts,
        outcomes=outcomes,
        format="sif",
        runner="apptainer",
        runner_version="1.4",
        host=HOST,
        started="2026-11-20T10:00:00+00:00",
        finished="2026-11-20T10:05:00+00:00",
        emulator="",
        no_gpu="" if gpu else "none",
    ).statement()
    read: dict[str, Any] = json.loads(json.dumps(written))
    return read


@pytest.mark.parametrize(("gpu", "counted"), [(False, "skipped"), (True, "passed")])
def test_a_gpu_check_that_passed_in_a_run_without_gpus_counts_as_skipped(
    gpu: bool, counted: str
) -> None:
    """In a run with GPUs, `gpu-withheld` passes where none is handed over."""

    def pass_without_gpu(document: dict[str, Any]) -> None:
        for check in document["predicate"]["configuration"][1:]:
            check["annotations"]["data"] = {"gpu_here": False}

    assert read_after(pass_without_gpu, gpu=gpu).outcomes["mpi"] == counted


def signed(kind: str, predicate: dict[str, Any]) -> dict[str, Any]:
    subject = [{"name": "x", "digest": {"sha256": DIGEST}}]
    return {"subject": subject, "predicateType": kind, "predicate": predicate}


def test_evidence_as_verification_writes_it() -> None:
    claim = proof_of(evidence(), key="site.pub", digest="sha256:00")
    assert (claim.kind, claim.key, claim.fault) == (EVIDENCE, "site.pub", "")
    assert f"sha256:{DIGEST}" in claim.subjects
    assert claim.content == Evidence(
        started=dt.datetime(2026, 11, 20, 10, tzinfo=dt.timezone.utc),
        finished=dt.datetime(2026, 11, 20, 10, 5, tzinfo=dt.timezone.utc),
        format="sif",
        runner="apptainer",
        launcher="the image's own",
        emulated=False,
        architecture="ppc64le",
        outcomes={"mpi": "passed", "gpu": "skipped", "fio": "failed"},
        driver="418.87",
        capabilities=(70,),
        tree="sha256:" + "7e" * 32,
    )


def run_in(document: dict[str, Any]) -> dict[str, Any]:
    run: dict[str, Any] = document["predicate"]["configuration"][0]["annotations"]
    return run


def read_after(change: Callable[[dict[str, Any]], object], **words: Any) -> Evidence:
    """What is read of evidence that something was done to."""
    document = evidence(**words)
    change(document)
    content = proof_of(document, key="k", digest="").content
    assert isinstance(content, Evidence)
    return content


def test_a_launcher_of_the_host_is_known_by_its_name() -> None:
    launcher = {"name": "srun", "product": "Slurm", "version": "22.05.8", "ranks": 4, "nodes": 2}
    read = read_after(lambda document: run_in(document)["launcher"].update(launcher))
    assert read.launcher == "srun"
    read = read_after(lambda document: run_in(document)["runner"].update(name="ch-run"))
    assert read.runner == "charliecloud"


def test_of_each_suite_the_oldest_index_counts_and_of_suites_the_newest() -> None:
    states: list[dict[str, Any]] = [
        {"archive": "debian", "suite": suite, "taken_as": suite, "date": date, "sha256": "0" * 64}
        for suite, date in (
            ("trixie", "2026-11-01T00:00:00+00:00"),
            ("trixie", "2026-10-01T00:00:00+00:00"),
            ("trixie-updates", "2026-10-15T00:00:00+00:00"),
            ("odd", ""),
        )
    ]
    states[1]["behind_days"], states[2]["behind_days"] = 3, 2
    read = read_after(lambda document: run_in(document).update(indices=states))
    date = dt.datetime(2026, 10, 15, tzinfo=dt.timezone.utc)
    assert read.packages == PackageIndices(date=date, behind_days=3)
    assert read_after(lambda document: run_in(document).update(indices=states[3:])).packages is None
    current = read_after(lambda document: run_in(document).update(indices=states[:1])).packages
    assert current
    assert current.behind_days == 0


def test_gpus_that_were_not_handed_over_prove_nothing() -> None:
    read = read_after(lambda _: None, gpu=False)
    assert (read.driver, read.capabilities) == ("", ())


def test_trees_that_differ_are_no_tree() -> None:
    assert read_after(lambda _: None, trees=("7e" * 32, "7f" * 32)).tree == ""


def test_a_check_on_two_lists_has_the_worst_outcome() -> None:
    read = read_after(lambda document: document["predicate"]["passedTests"].extend(["gpu", "fio"]))
    assert read.outcomes == {"mpi": "passed", "gpu": "skipped", "fio": "failed"}


def test_the_details_of_a_check_outweigh_the_lists() -> None:
    lists = {"passedTests": ["mpi", "gpu", "fio"], "warnedTests": [], "failedTests": []}
    read = read_after(lambda document: document["predicate"].update(lists, result="PASSED"))
    assert "failed" in read.outcomes.values()
    for result, is_read in (("PASSED", True), ("WARNED", True), ("FAILED", False), ("", False)):

        def say(document: dict[str, Any], result: str = result) -> None:
            names_no_failure(document)
            document["predicate"]["result"] = result

        document = evidence()
        say(document)
        assert bool(proof_of(document, key="k", digest="").fault) is not is_read
    for change in (ends_before_it_begins, saw_another_architecture):
        change(document)
    assert "; " in proof_of(document, key="k", digest="").fault


def names_no_failure(document: dict[str, Any]) -> None:
    document["predicate"]["failedTests"] = []
    for check in document["predicate"]["configuration"][1:]:
        check["annotations"]["outcome"] = "passed"


def ends_before_it_begins(document: dict[str, Any]) -> None:
    run_in(document)["started"] = "2026-11-20T10:05:01+00:00"


def saw_another_architecture(document: dict[str, Any]) -> None:
    run_in(document)["emulated"] = False
    document["predicate"]["configuration"][1]["annotations"]["data"] = {"uname": "s390x"}


@pytest.mark.parametrize(
    "change",
    [
        names_no_failure,
        ends_before_it_begins,
        saw_another_architecture,
        lambda document: run_in(document).pop("runner"),
        lambda document: run_in(document)["runner"].pop("name"),
        lambda document: run_in(document).pop("launcher"),
        lambda document: run_in(document).pop("gpu"),
        lambda document: run_in(document)["host"].pop("driver"),
        lambda document: run_in(document).update(finished="0001-01-01T00:00:00+14:00"),
        lambda document: run_in(document).update(finished="9999-12-31T23:00:00-14:00"),
        lambda document: run_in(document).update(finished="x"),
    ],
)
def test_evidence_that_contradicts_itself_or_lacks_something_is_malformed(
    change: Callable[[dict[str, Any]], object],
) -> None:
    document = evidence()
    change(document)
    assert "malformed" in proof_of(document, key="k", digest="").fault


def test_all_contradictions_of_evidence_are_told() -> None:
    document = evidence()
    ends_before_it_begins(document)
    saw_another_architecture(document)
    fault = proof_of(document, key="k", digest="").fault
    assert f"before it began at {run_in(document)['started']}; mpi saw s390x, expected " in fault


def test_provenance_and_bill() -> None:
    provenance: dict[str, Any] = {
        "buildDefinition": {
            "externalParameters": {"image": "hpc-base", "cell": {"arch": "x86_64"}},
            "resolvedDependencies": [
                {"uri": "https://x.example/hwloc.tar.gz", "digest": {"sha256": "bb"}},
                {"name": "matrix.yaml", "digest": {"sha256": "cc"}},
            ],
        },
        "runDetails": {"builder": {"id": "ci"}, "metadata": {"startedOn": "2026-11-01T00:00:00Z"}},
    }
    claim = proof_of(signed(SLSA, provenance), key="k", digest="")
    assert claim.kind == PROVENANCE
    assert claim.content == Provenance(
        builder="ci",
        sources=(
            *("hpc-base", "https://x.example/hwloc.tar.gz"),
            *("matrix.yaml", "matrix.yaml@sha256:cc"),
        ),
        finished=dt.datetime(2026, 11, 1, tzinfo=dt.timezone.utc),
    )
    provenance["runDetails"]["metadata"]["finishedOn"] = "2026-11-02T00:00:00Z"
    ended = proof_of(signed(SLSA, provenance), key="k", digest="").content
    assert isinstance(ended, Provenance)
    assert replace(ended, finished=None) == replace(claim.content, finished=None)
    assert str(ended.finished) == "2026-11-02 00:00:00+00:00"
    components = [
        {"name": "a", "version": "1", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "b", "licenses": [{"license": {"name": "own"}}]},
        {"name": "d", "licenses": [{"license": {"name": "(AGPL-3.0-only) and ISC, X"}}]},
        {"name": "c", "licenses": [{"expression": "(MIT OR AGPL-3.0-only) AND ISC WITH x"}]},
    ]
    for kind in (CYCLONEDX, f"{CYCLONEDX}/v1.5"):
        bill = proof_of(signed(kind, {"components": components}), key="k", digest="")
        assert bill.kind == BILL
        assert isinstance(bill.content, Bill)
        licences = [entry.licences for entry in bill.content.packages]
        stated = "(AGPL-3.0-only) and ISC, X"
        named = (stated, "AGPL-3.0-only", "ISC", "X")
        assert licences == [("MIT",), ("own",), named, ("MIT", "AGPL-3.0-only", "ISC", "x")]
        assert [entry.version for entry in bill.content.packages] == ["1", "", "", ""]


CELL = {
    "recipe": "hpc-base",
    "recipe_version": "1.0",
    "base": "debian13",
    "cuda": "12.4",
    "mpi": "none",
    "arch": "ppc64le",
    "flavour": "development",
}


def built(cell: object) -> Claim:
    predicate = {
        "buildDefinition": {"externalParameters": {"cell": cell}},
        "runDetails": {"builder": {"id": "ci"}},
    }
    return proof_of(signed(SLSA, predicate), key="k", digest="")


def test_a_provenance_names_its_recipe_and_tag() -> None:
    content = built(CELL).content
    assert isinstance(content, Provenance)
    tag = "1.0-debian13-cuda12.4-development"
    assert (content.recipe, content.tag) == ("hpc-base", tag)
    assert f"hpc-base-{tag}-ppc64le" == Cell(**CELL).identifier
    bare = {name: CELL[name] for name in ("recipe", "recipe_version", "base")}
    content = built(bare).content
    assert isinstance(content, Provenance)
    assert content.tag == "1.0-debian13"
    for other in (None, "x", {}, {"recipe": "hpc-base"}):
        content = built(other).content
        assert isinstance(content, Provenance)
        assert (content.recipe, content.tag) == ("", "")
    assert "malformed" in built({**CELL, "base": 13}).fault


def test_a_bill_that_says_it_is_incomplete() -> None:
    nested = {"name": "a", "components": [{"name": "b", "components": [{"name": "c"}]}]}
    parts = [nested, {"name": "d"}]
    for aggregate, complete in (("unknown", True), ("incomplete_third_party_only", False)):
        predicate = {"components": parts, "compositions": [{"aggregate": aggregate}]}
        content = proof_of(signed(CYCLONEDX, predicate), key="k", digest="").content
        assert isinstance(content, Bill)
        assert [entry.name for entry in content.packages] == ["a", "b", "c", "d"]
        assert content.complete == complete


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-14:00", "x"])
def test_a_time_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"year|isoformat"):
        time_of(text)


def test_what_cannot_be_printed_is_an_escape() -> None:
    ruling = refused("sbom", "a\x1b[2J\ud800 é", "\x07")
    assert as_lines([ruling])[0].endswith("a\\x1b[2J\\ud800 é")
    assert as_lines([ruling])[1].endswith("fix: \\x07")


def test_what_else_is_signed_is_nothing_that_is_judged() -> None:
    claim = proof_of(signed("https://example.org/other", {}), key="k", digest="")
    assert (claim.kind, claim.content, claim.fault) == (OTHER, None, "")


RUBBISH: tuple[Any, ...] = (None, 0, -1, True, "", "x", [], [None], {}, {"": None}, 1e999)


@pytest.mark.parametrize("seed", range(300))
def test_rubbish_in_a_signed_statement_is_a_fault_or_nothing(seed: int) -> None:
    rng = random.Random(seed)
    document = evidence()
    _, *paths = places(document)
    *above, key = rng.choice(paths)
    holder = member(document, *above)
    holder[key] = rng.choice(RUBBISH)
    if rng.random() < 0.2 and isinstance(holder, dict):
        del holder[key]
    claim = proof_of(document, key="k", digest="")
    assert bool(claim.fault) == (claim.content is None) or claim.kind == OTHER
    json.dumps(claim.fault)
