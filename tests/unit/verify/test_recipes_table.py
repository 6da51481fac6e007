"""The README's table of recipes says what was seen, and no more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from manifest_samples import document
from recipes_table import (
    ARCHS,
    EARLIER,
    RECORD,
    REHEARSED,
    MatrixImage,
    images_of_rows,
    note,
    table,
)
from samples import ROOT
from test_rehearse_recipes import rehearsed

KNOWN: dict[str, Any] = json.loads(RECORD.read_text())


def test_the_readme_has_the_table() -> None:
    """python bench/recipes_table.py prints it."""
    assert "\n".join(table(KNOWN, images_of_rows())) in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("key", sorted(KNOWN["rehearsed"]))
def test_what_was_rehearsed_is_what_the_recipe_asks_for(key: str) -> None:
    """If this fails: build-images rehearse --image ... --json, then bench/recipes_table.py."""
    noted = KNOWN["rehearsed"][key]
    assert rehearsed(noted["image"]).asked == noted["asked"]


def test_a_rehearsal_that_failed_is_none() -> None:
    images = {
        (("a", False), arch): [
            MatrixImage(f"a-1.0-b1-{arch}", "k2"),
            MatrixImage(f"a-1.0-b2-{arch}", "k3"),
        ]
        for arch in ARCHS
    }
    rehearsals = {
        f"a {arch}": {"passed": 7, "failed": failed, "not_tried": 2}
        for arch, failed in (("x86_64", 1), ("ppc64le", 0))
    }
    [_, _, line] = table({"built": {}, "rehearsed": rehearsals}, images)
    assert line == f"| `a` | compiled only | {REHEARSED}: 7 of 9 | compiled only |"
    [_, _, line] = table({"built": {"a x86_64": {"how": "yes"}}, "rehearsed": rehearsals}, images)
    assert (
        line == f"| `a` | built and proven{EARLIER} | {REHEARSED}: 7 of 9 | compiled only |"
    )  # of a date without keys
    built = {"a x86_64": {"how": "yes", "key": "k1"}, "a ppc64le": {"how": "emulated", "key": "k2"}}
    [_, _, line] = table({"built": built, "rehearsed": rehearsals}, images)
    assert (
        line == f"| `a` | built and proven{EARLIER} | built and proven, emulated | compiled only |"
    )
    built = {
        "a x86_64": {"how": "yes", "image": "a-1.0-b2-x86_64", "key": "k3"},
        "a ppc64le": {"how": "yes", "image": "a-1.0-gone-ppc64le", "key": "k3"},
    }
    [_, _, line] = table({"built": built, "rehearsed": rehearsals}, images)
    assert (
        line
        == f"| `a` | built and proven, `b2` | built and proven, `gone`{EARLIER} | compiled only |"
    )


def test_a_manifest_is_noted_if_its_image_was_verified() -> None:
    first = images_of_rows()[("hpc-base", False), "ppc64le"][0]
    manifest = document(
        {
            "image": first.identifier,
            "formats_equal": True,
            "emulated": True,
            "proven_on_gpu": None,
            "content_key": first.content_key,
            "started": "2026-11-28T03:18:30+00:00",
        }
    )
    record: dict[str, Any] = {"built": {}, "rehearsed": {}}
    note(record, manifest)
    [(key, noted)] = record["built"].items()
    assert (key, noted["how"], noted["date"]) == ("hpc-base ppc64le", "emulated", "2026-11-28")
    assert noted["artifacts"] == {"oci": "sha256:0"}
    with pytest.raises(SystemExit, match="no such image"):
        note(record, {**manifest, "image": "another"})
    with pytest.raises(SystemExit, match="failed"):
        note(record, {**manifest, "outcome": "failed"})


ON_GPU = {"gpu-found": "passed", "gpu-mpi": "skipped"}  # Debian's MPI takes no pointers to GPUs


@pytest.mark.parametrize(
    ("runs", "how"),
    [
        ({}, "without a GPU"),
        ({"sif-kit-apptainer-node": ON_GPU}, "on a GPU as SIF only"),
        ({"sif-a": ON_GPU, "charliecloud-b": ON_GPU}, "on a GPU as SIF and tarball only"),
        ({"sif-a": ON_GPU, "sif-b": {"gpu-found": "failed"}}, "without a GPU"),
        ({"sif-a": {**ON_GPU, "gpu-withheld": "failed"}}, "without a GPU"),
    ],
)
def test_formats_that_ran_on_a_gpu_are_named(runs: dict[str, dict[str, str]], how: str) -> None:
    image = images_of_rows()[("gpu-bench", True), "x86_64"][-1]
    outcomes = {
        run: [
            {"check": check, "outcome": outcome, "data": {"applies": check != "gpu-mpi"}}
            for check, outcome in checks.items()
        ]
        for run, checks in {"sif": {"gpu-found": "skipped"}, **runs}.items()
    }
    manifest = {
        "image": image.identifier,
        "formats_equal": True,
        "emulated": False,
        "proven_on_gpu": False,
        "content_key": image.content_key,
        "started": "2026-11-28T03:18:30+00:00",
        "in_image_checks": [{"name": name, "needs": ["gpu"]} for name in ON_GPU],
        "checks": outcomes,
    }
    record: dict[str, Any] = {"built": {}, "rehearsed": {}}
    note(record, document(manifest))
    assert record["built"]["gpu-bench cuda x86_64"]["how"] == how


def test_every_image_that_is_named_is_one() -> None:
    images = {image.identifier for row in images_of_rows().values() for image in row}
    assert {noted["image"] for noted in KNOWN["rehearsed"].values()} <= images
    assert {key.rpartition(" ")[2] for key in KNOWN["built"]} <= {*ARCHS}
    assert {noted["image"] for noted in KNOWN["built"].values() if "image" in noted} <= images
