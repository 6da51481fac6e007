"""The records of GPUs in docs/evidence say what the docs say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

import pytest

from builder.verify.kit_evidence import KitEvidence, read_evidence

DOCS = Path(__file__).parents[3] / "docs"
H200 = DOCS / "evidence/h200"
FIGURES = {
    "copy in its memory": "copy_gb_per_s",
    "triad in its memory": "triad_gb_per_s",
    "copy from the host": "to_gpu_gb_per_s",
    "copy to the host": "from_gpu_gb_per_s",
}


@pytest.mark.parametrize("file", sorted(H200.glob("kit-*.json")), ids=lambda file: file.stem)
def test_every_command_of_a_kit_passed_on_the_gpu_or_did_not_apply(file: Path) -> None:
    evidence = read_evidence(file)
    assert evidence.host.gpus == evidence.gpus_after == ("NVIDIA H200",)
    assert evidence.no_gpu == ""
    assert {step.status for step in evidence.results} <= {0, 77}
    for step in evidence.steps:
        # the negative control is skipped where no driver was passed
        skipped = '"applies": false' in step.stdout or step.without_gpu
        assert step.status == 0 or skipped, step.stdout
    assert sum(not step.without_gpu and step.status == 0 for step in evidence.steps) > 10


def test_the_checks_that_ran_without_a_container_passed() -> None:
    checks = json.loads((H200 / "gpu-checks.json").read_text())["checks"]
    outcomes = [check["outcome"] for check in checks]
    assert "failed" not in outcomes
    assert f"{outcomes.count('passed')} passed; " in (DOCS / "gpus.md").read_text()


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
        found = re.search(r"(?m)^data: (.*)$", program.stdout)
        assert found is not None
        rates[program.bare][program.round] = json.loads(found[1])[name]
    ratios = [inside / rates[True][turn] for turn, inside in rates[False].items()]
    inside, bare = (median(rates[place].values()) for place in (False, True))
    return f"{inside:.1f} | {bare:.1f} | {min(ratios):.3f} to {max(ratios):.3f}"
