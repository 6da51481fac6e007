"""The records of GPUs in docs/evidence say what the docs say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

import pytest

from builder.model import PASSED, SKIPPED
from builder.verify.kit_evidence import KitEvidence, read_evidence
from builder.verify.measure.rounds import against_bare

DOCS = Path(__file__).parents[3] / "docs"
H200 = DOCS / "evidence/h200"
FIGURES = {
    "copy in its memory": "copy_gb_per_s",
    "triad in its memory": "triad_gb_per_s",
    "copy from the host": "to_gpu_gb_per_s",
    "copy to the host": "from_gpu_gb_per_s",
}


# Debian's MPI takes no pointers into a GPU's memory.
NOT_APPLYING = {"gpu-bench": {"gpu-mpi", "gpu-mpi-speed"}, "mpi-source": set[str]()}


@pytest.mark.parametrize("file", sorted(H200.glob("kit-*.json")), ids=lambda file: file.stem)
def test_every_command_of_a_kit_passed_on_the_gpu_or_did_not_apply(file: Path) -> None:
    evidence = read_evidence(file)
    assert evidence.host.gpus == evidence.gpus_after == ("NVIDIA H200",)
    assert evidence.no_gpu == ""
    steps = [step for step in evidence.steps if step.argv[0].startswith("/")]
    ends = {Path(step.argv[0]).name[4:]: step for step in steps if not step.without_gpu}
    assert len(ends) > 10
    skipped = {name for name, step in ends.items() if step.status == 77}
    assert skipped == NOT_APPLYING[evidence.image.partition("-1.0")[0]]
    assert {step.status for name, step in ends.items() if name not in skipped} == {0}
    # of the second container, without GPUs: the first step finds none, and the control passes
    assert [step.status for step in evidence.steps if step.without_gpu] == [77, 0]
    assert not [step for step in evidence.results if "FAILED" in step.stdout + step.stderr]


def test_the_checks_that_ran_without_a_container_passed() -> None:
    checks = json.loads((H200 / "gpu-checks.json").read_text())["checks"]
    outcomes = [check["outcome"] for check in checks]
    assert "failed" not in outcomes
    assert f"{outcomes.count('passed')} passed; " in (DOCS / "gpus.md").read_text()


def test_the_cases_that_must_fail_are_as_many_as_the_docs_say() -> None:
    titles = re.findall(r"(?m)^--- (.*)$", (H200 / "must-fail.txt").read_text())
    failed = [title for title in titles if not title.startswith("sound")]
    assert f"| {len(failed)} cases that must fail" in (DOCS / "gpus.md").read_text()


@pytest.mark.parametrize(("engine", "outcome"), [("userns", PASSED), ("apptainer", SKIPPED)])
def test_a_user_namespace_is_within_1_percent_of_bare_and_apptainer_is_not_decided(
    engine: str, outcome: str
) -> None:
    evidence = read_evidence(H200 / f"kit-gpu-bench-{engine}.json")
    ran = [(each.program, each.round, each.bare, each.completed) for each in evidence.programs]
    [judged] = against_bare(ran, evidence.format)
    assert (judged.check, judged.outcome) == ("gpu-memory-against-bare", outcome)


def test_the_figures_of_the_docs_are_those_of_the_evidence() -> None:
    kits = [
        read_evidence(H200 / f"kit-gpu-bench-{engine}.json") for engine in ("apptainer", "userns")
    ]
    for title, name in FIGURES.items():
        cells = " | ".join(_cells(kit, name) for kit in kits)
        assert f"| {title}, GB/s | {cells} |" in (DOCS / "gpus.md").read_text()


def _cells(evidence: KitEvidence, name: str) -> str:
    rates: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for program in evidence.programs:
        data = re.search(r"(?m)^data: (.*)$", program.stdout)
        assert data is not None
        rates[program.bare][program.round] = json.loads(data[1])[name]
    ratios = [inside / rates[True][turn] for turn, inside in rates[False].items()]
    inside, bare = (median(rates[place].values()) for place in (False, True))
    return f"{inside:.1f} | {bare:.1f} | {min(ratios):.3f} to {max(ratios):.3f}"
