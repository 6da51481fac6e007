"""Planted defects that no engine is needed for: caught and named; sound images are not accused."""

from __future__ import annotations

from pathlib import Path

import defects
import limits
import pytest
from campaign import Case
from harness import PROJECT, missing, sample

pytestmark = pytest.mark.engines

DEFECTS = [case for planted, _ in defects.GROUPS.values() for case in planted()]
SOUND = [case for _, unspoiled in defects.GROUPS.values() for case in unspoiled()]
PROGRAMS = ("tar2sqfs", "sqfs2tar", "pigz", "zstd", "cc", "mpicc.openmpi")


def name_of(case: Case) -> str:
    return f"{case.family}: {case.name}"


@pytest.fixture(autouse=True)
def programs() -> None:
    if absent := missing(PROGRAMS):
        pytest.skip(f"missing on this machine: {', '.join(absent)}")


@pytest.mark.campaign
@pytest.mark.parametrize("case", sample(DEFECTS, 12), ids=name_of)
def test_a_defect_is_caught_and_named(case: Case, tmp_path: Path) -> None:
    assert defects.wrong_with(case, tmp_path) == ""


@pytest.mark.campaign
@pytest.mark.parametrize("case", sample(SOUND, 4), ids=name_of)
def test_a_sound_image_is_not_accused(case: Case, tmp_path: Path) -> None:
    assert defects.wrong_with(case, tmp_path) == ""


@pytest.mark.campaign
@pytest.mark.parametrize("case", sample(limits.cases(), 2), ids=name_of)
def test_a_limit_is_still_one(case: Case, tmp_path: Path) -> None:
    assert defects.wrong_with(case, tmp_path) == ""


def test_the_docs_name_each_limit() -> None:
    docs = (PROJECT / "docs/checks.md").read_text()
    _, _, section = docs.partition("## Limits")
    names = [case.name for case in limits.cases()]
    assert [name for name in names if f"| {name} |" not in section.partition("\n## ")[0]] == []
    assert len(names) <= 10


def test_the_campaign_has_as_many_cases_as_were_asked_for() -> None:
    for cases, least in ((DEFECTS, 200), (SOUND, 100)):
        names = [name_of(case) for case in cases]
        assert len(names) == len({*names}) >= least


def test_a_defect_that_is_not_caught_or_not_named_is_counted(tmp_path: Path) -> None:
    said = Case(family="x", name="x", faults=lambda _: ["a fault"], named="another")
    silent = Case(family="x", name="y", faults=lambda _: [], named="another")
    accused = Case(family="x", name="z", faults=lambda _: ["a fault"])
    assert defects.wrong_with(said, tmp_path).startswith("caught, and not named")
    assert defects.wrong_with(silent, tmp_path) == "not caught"
    assert defects.wrong_with(accused, tmp_path) == "accused: a fault"
    assert defects.tried([said, silent, accused])[1].total() == 3
