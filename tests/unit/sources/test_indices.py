"""Which states of package indices are known, kept, and shown."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from manifest_samples import record

from builder.build.engines import Tools
from builder.model.manifest import ImageInputs, Manifest
from builder.model.package_indices import (
    IndexState,
    age_days,
    days_behind,
    state_from,
    state_of,
    states_in,
)
from builder.reports.report.view import badges_of, index_states
from builder.sources.journals import Journals, build_id
from builder.sources.package_cache import PackageCache
from builder.system.home import Home
from builder.system.process import Processes

ONE, OTHER = build_id("one"), build_id("other")
MAIN = IndexState(
    archive="debian",
    suite="trixie",
    taken_as="stable",
    date="2026-09-12T07:55:41+00:00",
    sha256="a" * 64,
    behind_days=70,
)
SECURITY = IndexState(
    archive="debian-security",
    suite="trixie-security",
    taken_as="trixie-security",
    date="2026-11-23T11:22:38+00:00",
    sha256="b" * 64,
)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://m.example/debian/dists/trixie/InRelease", ("debian", "trixie")),
        ("http://m.example/a/debian/dists/trixie/Release", ("debian", "trixie")),
        ("http://m.example/debian/dists/buster/updates/InRelease", ("debian", "buster/updates")),
        ("http://m.example/debian/dists/trixie/main/binary-amd64/Packages.xz", None),
        ("http://m.example/InRelease", None),
    ],
)
def test_a_release_file_is_known_by_its_address(url: str, name: tuple[str, str] | None) -> None:
    found = state_of(url, url, b"Date: Sat, 12 Sep 2026 07:55:41 UTC\n")
    assert (found and (found.archive, found.suite)) == name
    assert found is None or (found.date, found.behind_days) == (MAIN.date, 0)


@pytest.mark.parametrize("text", [b"", b"Date: some day\n", b"Date:\n", b"\xff"])
def test_a_release_file_may_have_no_date(text: bytes) -> None:
    url = "http://m.example/debian/dists/trixie/InRelease"
    found = state_of(url, url, text)
    assert found
    assert found.date == ""
    assert age_days(found, "2026-11-24T00:00:00+00:00") is None


@pytest.mark.parametrize(
    "change", [{"date": "x"}, {"behind_days": True}, {"suite": 1}, {"sha256": None}]
)
def test_what_is_no_state_is_not_taken_for_one(change: dict[str, object]) -> None:
    assert state_from(asdict(MAIN)) == MAIN
    with pytest.raises(ValueError, match=r"expected|Invalid isoformat"):
        state_from({**asdict(MAIN), **change})
    assert states_in(ImageInputs(indices=({**asdict(MAIN), **change}, asdict(SECURITY)))) == (
        SECURITY,
    )


def test_a_build_on_cached_layers_was_told_what_these_were(tmp_path: Path) -> None:
    journals = Journals(cache=tmp_path)
    journals.begin(ONE, fresh=True)
    journals.note_state(ONE, MAIN)
    journals.end(ONE, built=["1"], taken=[], well=True)
    journals.begin(OTHER, fresh=False)
    journals.note_state(OTHER, SECURITY)
    journals.end(OTHER, built=["2"], taken=["1"], well=True)
    assert journals.states(OTHER) == (MAIN, SECURITY)


@pytest.mark.parametrize("taken", [[], ["1"]])
def test_what_a_failed_build_was_told_counts_where_its_layers_do(
    taken: list[str], tmp_path: Path
) -> None:
    journals = Journals(cache=tmp_path)
    journals.begin(ONE, fresh=False)
    journals.note_state(ONE, MAIN)
    journals.end(ONE, built=["1"], taken=[], well=False)
    journals.begin(ONE, fresh=False)
    journals.note_state(ONE, SECURITY)
    journals.end(ONE, built=["2"], taken=taken, well=True)
    assert journals.states(ONE) == ((MAIN, SECURITY) if taken else (SECURITY,))


def manifest(*states: IndexState) -> Manifest:
    said = [{**asdict(one), "used_by": ["base"]} for one in states]
    inputs = {"indices": said, "base": {"key": "1"}}
    return record({"inputs": inputs, "started": "2026-11-24T10:00:00+00:00"})


def test_the_report_shows_how_old_they_were() -> None:
    both = manifest(MAIN, SECURITY)
    text = index_states(both)
    assert text == (
        "debian trixie of 2026-09-12 (as stable), 73 days old, 70 days behind the mirror; "
        "debian-security trixie-security of 2026-11-23, 0 days old"
    )
    assert "packages 70 days behind" in [one.text for one in badges_of(both)]
    assert "packages 70 days behind" not in [one.text for one in badges_of(manifest(SECURITY))]
    assert index_states(manifest(MAIN)).endswith("; no security updates")
    assert index_states(record({})) == ""
    undated, later = replace(SECURITY, date=""), replace(SECURITY, date="2026-11-26T00:00:00+00:00")
    assert index_states(manifest(undated)).endswith("-security of an unknown day")
    assert index_states(manifest(later)).endswith("of 2026-11-26, 0 days old")
    assert days_behind(ImageInputs()) == 0


def test_what_an_earlier_build_of_that_name_was_told_of_may_be_left_out(tmp_path: Path) -> None:
    earlier, now = PackageCache(folder=tmp_path), PackageCache(folder=tmp_path)
    earlier.note_index(ONE, MAIN)
    now.note_index(ONE, SECURITY)
    home = Home(path=tmp_path / "home")
    tools = Tools(processes=Processes(), home=home, packages=now, journals=now.journals)
    assert tools.index_states("one") == (MAIN, SECURITY)
    assert tools.index_states("one", earlier=False) == (SECURITY,)
