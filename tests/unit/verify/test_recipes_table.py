"""The README's table of recipes says what was seen, and no more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recipes_table import ARCHS, EARLIER, RECORD, REHEARSED, First, first_images, note, table
from samples import ROOT
from test_rehearse_recipes import rehearsed

KNOWN: dict[str, Any] = json.loads(RECORD.read_text())


def test_the_readme_has_the_table() -> None:
    """python bench/recipes_table.py prints it."""
    assert "\n".join(table(KNOWN, first_images())) in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("key", sorted(KNOWN["rehearsed"]))
def test_what_was_rehearsed_is_what_the_recipe_asks_for(key: str) -> None:
    """If this fails: build-images rehearse --image ... --json, then bench/recipes_table.py."""
    noted = KNOWN["rehearsed"][key]
    assert rehearsed(noted["image"]).asked == noted["asked"]


def test_a_rehearsal_that_failed_is_none() -> None:
    images = {(("a", False), arch): First(f"a-1.0-{arch}", "k2") for arch in ARCHS}
    rehearsals = {
        f"a {arch}": {"passed": 7, "failed": failed, "not_tried": 2}
        for arch, failed in (("x86_64", 1), ("ppc64le", 0))
    }
    [_, _, line] = table({"built": {}, "rehearsed": rehearsals}, images)
    assert line == f"| `a` | compiled only | {REHEARSED}: 7 of 9 |"
    [_, _, line] = table({"built": {"a x86_64": {"how": "yes"}}, "rehearsed": rehearsals}, images)
    assert line == f"| `a` | built and proven | {REHEARSED}: 7 of 9 |"
    built = {"a x86_64": {"how": "yes", "key": "k1"}, "a ppc64le": {"how": "emulated", "key": "k2"}}
    [_, _, line] = table({"built": built, "rehearsed": rehearsals}, images)
    assert line == f"| `a` | {EARLIER} | built and proven, emulated |"


def test_a_manifest_is_noted_if_its_image_was_verified() -> None:
    first = first_images()[("hpc-base", False), "ppc64le"]
    manifest = {
        "image": first.identifier,
        "outcome": "verified",
        "formats_equal": True,
        "emulated": True,
        "proven_on_gpu": None,
        "content_key": first.content_key,
        "started": "2026-11-28T03:18:30+00:00",
        "artifacts": {"oci": {"digest": "sha256:1"}},
    }
    record: dict[str, Any] = {"built": {}, "rehearsed": {}}
    note(record, manifest)
    [(key, noted)] = record["built"].items()
    assert (key, noted["how"], noted["date"]) == ("hpc-base ppc64le", "emulated", "2026-11-28")
    assert noted["artifacts"] == {"oci": "sha256:1"}
    with pytest.raises(SystemExit, match="first images only"):
        note(record, {**manifest, "image": "another"})
    with pytest.raises(SystemExit, match="failed"):
        note(record, {**manifest, "outcome": "failed"})


def test_every_image_that_is_named_is_one() -> None:
    images = {first.identifier for first in first_images().values()}
    assert {noted["image"] for noted in KNOWN["rehearsed"].values()} <= images
    assert {key.rpartition(" ")[2] for key in KNOWN["built"]} <= {*ARCHS}
    assert {noted["image"] for noted in KNOWN["built"].values() if "image" in noted} <= images
