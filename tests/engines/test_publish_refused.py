"""What may not be published, and the line that says why."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import passed
from publishing import TAG, assert_no_tags, publish, unproven
from real_registry import RealRegistry

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("own_home")]


Change = Callable[[dict[str, Any]], object]


def edit(file: Path, change: Change) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def edited(name: str, change: Change) -> Callable[[Path], None]:
    return lambda image: edit(image / name, change)


def without(name: str) -> Callable[[Path], None]:
    return lambda image: (image / name).unlink()


def evidence_of_another(image: Path) -> None:
    other = next(path for path in image.parent.iterdir() if path.name.startswith("app"))
    shutil.copy(other / "evidence/oci.json", image / "evidence/oci.json")


REPACKED = f"sha256:{hashlib.sha256(bytes(20_000)).hexdigest()}"


def repacked_sif(image: Path) -> None:
    """A SIF of other bytes, as if it had been packed again."""
    (image / "image.sif").write_bytes(bytes(20_000))
    edit(
        image / "manifest.json",
        lambda manifest: manifest["artifacts"]["sif"].update(digest=REPACKED),
    )


def damaged_config(image: Path) -> None:
    flip(blob(image, lambda parsed: parsed["config"]["digest"]))


def damaged_manifest(image: Path) -> None:
    flip(named(image, manifest_digest(image)))


def short_layer(image: Path) -> None:
    file = blob(image, lambda parsed: parsed["layers"][-1]["digest"])
    file.write_bytes(file.read_bytes()[:-1])


MANIFEST, EVIDENCE = "manifest.json", "evidence/oci.json"
FAILED = {"result": "FAILED", "failedTests": ["mpi"]}
NONE_PASSED = {"result": "WARNED", "passedTests": []}
SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "outcome": (
        edited(MANIFEST, lambda manifest: manifest.update(outcome="failed")),
        "it is not verified: failed",
    ),
    "build": (shutil.rmtree, "it is not built"),
    "inputs": (
        edited(MANIFEST, lambda manifest: manifest.update(content_key="0")),
        "its inputs changed after the build",
    ),
    "evidence": (
        without("evidence/sif.json"),
        "evidence/sif.json: this evidence is missing, or cannot be read",
    ),
    "list of evidence": (
        edited(MANIFEST, lambda manifest: manifest["evidence"].remove("evidence/sif.json")),
        "no evidence that its checks ran as sif",
    ),
    "result": (
        edited(EVIDENCE, lambda statement: statement["predicate"].update(FAILED)),
        "evidence/oci.json: FAILED: mpi",
    ),
    "passed": (
        edited(EVIDENCE, lambda statement: statement["predicate"].update(NONE_PASSED)),
        "evidence/oci.json: no check passed",
    ),
    "subject": (evidence_of_another, "evidence/oci.json: its subject oci is missing"),
    "sif": (repacked_sif, f"expected {REPACKED}"),
    "config": (damaged_config, "it is incomplete: "),
    "manifest": (damaged_manifest, "it is incomplete: "),
    "length": (short_layer, "bytes, expected"),
    "bill": (without("sbom.cdx.json"), "its bill of materials: "),
}


def named(image: Path, digest: str) -> Path:
    return image / "image.oci" / "blobs" / "sha256" / digest.partition(":")[2]


def manifest_digest(image: Path) -> str:
    index = json.loads((image / "image.oci/index.json").read_text())
    return str(index["manifests"][0]["digest"])


def blob(image: Path, digest_in: Callable[[dict[str, Any]], str]) -> Path:
    return named(image, digest_in(json.loads(named(image, manifest_digest(image)).read_text())))


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_missing_or_unproven_is_refused_with_its_reason(
    name: str, project: Path, registry: RealRegistry
) -> None:
    spoil, reason = SPOILT[name]
    spoil(project / "out" / "tools-1.0-sample-ppc64le")
    done = publish(project, registry.host)
    assert done.status == 5, done.stderr
    lines = [line for line in done.stderr.splitlines() if reason in line]
    assert lines
    assert all(line.startswith(f"tools:{TAG}: ppc64le: ") for line in lines)
    assert not list(registry.store.rglob("link")), "nothing was sent"
    passed(publish(project, registry.host, "--recipe", "app"))


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
    assert f"{file}: its digest is sha256:" in done.stderr
    assert_no_tags(registry.host)


def test_a_tag_keeps_its_architectures(project: Path, registry: RealRegistry) -> None:
    passed(publish(project, registry.host))
    done = publish(project, registry.host, "--arch", "x86_64", "--recipe", "app")
    assert done.status == 5
    assert f"/site/app:{TAG}: the registry also has it for ppc64le" in done.stderr
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
    assert 'matrix.yaml:3: tags.app.old.base: unknown value of the axis base: "gone"' in done.stderr
    text = text.replace("base: gone", "base: sample")
    excluded = "exclude: [{when: {recipe: app}, reason: no more}]\n"
    matrix.write_text(text + excluded)
    passed(publish(project, registry.host, "--recipe", "tools"))
