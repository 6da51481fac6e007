"""What may not be published, and the line that says why."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from publishing import (
    RECIPES,
    TAG,
    own_tags,
    publish,
    repository,
    unproven,
)
from real_registry import RealRegistry

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home")]


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def spoil_outcome(image: Path) -> str:
    edit(image / "manifest.json", lambda one: one.update(outcome="failed"))
    return "it is not verified: failed"


def spoil_build(image: Path) -> str:
    shutil.rmtree(image)
    return "it is not built"


def spoil_inputs(image: Path) -> str:
    edit(image / "manifest.json", lambda one: one.update(content_key="0"))
    return "it was built from other inputs than today's"


def spoil_evidence(image: Path) -> str:
    (image / "evidence" / "sif.json").unlink()
    return "evidence/sif.json: this evidence is missing, or cannot be read"


def spoil_list_of_evidence(image: Path) -> str:
    edit(image / "manifest.json", lambda one: one["evidence"].remove("evidence/sif.json"))
    return "no evidence of a run of its checks as sif"


def spoil_result(image: Path) -> str:
    edit(
        image / "evidence" / "oci.json",
        lambda one: one["predicate"].update(result="FAILED", failedTests=["mpi"]),
    )
    return "evidence/oci.json: FAILED: mpi"


def spoil_passed(image: Path) -> str:
    edit(
        image / "evidence" / "oci.json",
        lambda one: one["predicate"].update(result="WARNED", passedTests=[]),
    )
    return "evidence/oci.json: no check passed"


def spoil_subject(image: Path) -> str:
    other = next(one for one in image.parent.iterdir() if one.name.startswith("app"))
    shutil.copy(other / "evidence" / "oci.json", image / "evidence" / "oci.json")
    return "evidence/oci.json: it is about no oci"


def spoil_sif(image: Path) -> str:
    """A SIF of other bytes, as if it had been packed again."""
    content = bytes(20_000)
    (image / "image.sif").write_bytes(content)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    edit(image / "manifest.json", lambda one: one["artifacts"]["sif"].update(digest=digest))
    return f"not about {digest}"


def spoil_config(image: Path) -> str:
    flip(blob(image, lambda parsed: parsed["config"]["digest"]))
    return "it is not whole: "


def spoil_manifest(image: Path) -> str:
    index = json.loads((image / "image.oci" / "index.json").read_text())
    flip(named(image, index["manifests"][0]["digest"]))
    return "it is not whole: "


def spoil_length(image: Path) -> str:
    file = blob(image, lambda parsed: parsed["layers"][-1]["digest"])
    file.write_bytes(file.read_bytes()[:-1])
    return "bytes, expected"


def spoil_bill(image: Path) -> str:
    (image / "sbom.cdx.json").unlink()
    return "its bill of materials: "


SPOILERS = (
    spoil_outcome,
    spoil_build,
    spoil_inputs,
    spoil_evidence,
    spoil_list_of_evidence,
    spoil_result,
    spoil_passed,
    spoil_subject,
    spoil_sif,
    spoil_config,
    spoil_manifest,
    spoil_length,
    spoil_bill,
)


def named(image: Path, digest: str) -> Path:
    return image / "image.oci" / "blobs" / "sha256" / digest.partition(":")[2]


def blob(image: Path, which: Callable[[dict[str, Any]], str]) -> Path:
    index = json.loads((image / "image.oci" / "index.json").read_text())
    return named(
        image, which(json.loads(named(image, index["manifests"][0]["digest"]).read_text()))
    )


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda one: str(one.__name__))
def test_what_is_missing_or_unproven_is_refused_with_its_reason(
    spoil: Callable[[Path], str], project: Path, registry: RealRegistry
) -> None:
    reason = spoil(project / "out" / "tools-1.0-sample-ppc64le")
    done = publish(project, registry.host)
    assert done.status == 5, done.stderr
    lines = [one for one in done.stderr.splitlines() if reason in one]
    assert lines
    assert all(one.startswith(f"tools:{TAG}: ppc64le: ") for one in lines)
    assert not list(registry.store.rglob("link")), "nothing was sent"
    kept = publish(project, registry.host, "--recipe", "app")
    assert kept.status == 0, kept.stderr


@pytest.mark.parametrize("where", ["layers", "sif"])
def test_a_wrong_byte_in_what_is_sent_is_found_before_any_tag(
    where: str, project: Path, registry: RealRegistry
) -> None:
    image = project / "out" / "tools-1.0-sample-x86_64"
    layer = blob(image, lambda parsed: parsed["layers"][-1]["digest"])
    file = image / "image.sif" if where == "sif" else layer
    flip(file)
    done = publish(project, registry.host)
    assert done.status == 5
    assert f"{file}: it holds sha256:" in done.stderr
    for recipe in RECIPES:
        assert own_tags(repository(registry.host, recipe)) == set()


def test_a_tag_keeps_its_architectures(project: Path, registry: RealRegistry) -> None:
    assert publish(project, registry.host).status == 0
    done = publish(project, registry.host, "--arch", "x86_64", "--recipe", "app")
    assert done.status == 5
    assert f"/site/app:{TAG}: it is there for ppc64le, too" in done.stderr
    shutil.rmtree(project / "out" / "app-1.0-sample-ppc64le")
    done = publish(project, registry.host, "--image", "app-*-x86_64")
    assert done.status == 5, "a glob leaves no architecture out"
    assert f"app:{TAG}: ppc64le: it is not built" in done.stderr
    assert unproven(registry.host) == []


def test_a_floating_tag_must_mean_a_cell(project: Path, registry: RealRegistry) -> None:
    matrix = project / "matrix.yaml"
    text = matrix.read_text()
    text = text.replace(
        "app: {latest: {base: sample}}", "app: {latest: {base: sample}, old: {base: gone}}"
    )
    matrix.write_text(text)
    done = publish(project, registry.host)
    assert done.status == 2
    assert 'matrix.yaml:3: tags.app.old.base: "gone" is no value of the axis base' in done.stderr
    text = text.replace("base: gone", "base: sample")
    excluded = "exclude: [{when: {recipe: app}, reason: no more}]\n"
    matrix.write_text(text + excluded)
    done = publish(project, registry.host, "--recipe", "tools")
    assert done.status == 0, done.stderr
