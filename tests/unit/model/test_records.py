"""Records: what is read is what was written, byte for byte, and what is wrong is named."""

from __future__ import annotations

import json
import pprint
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from manifest_samples import document
from samples import ROOT, compare_with_golden

from builder.artifacts.manifests import read_manifest, read_statements, write_manifest
from builder.build.records import read_record, write_record
from builder.distribute.pull.receipts import read_receipt, write_json
from builder.model.agreement import faults_of
from builder.model.manifest import manifest_from, manifest_text
from builder.model.predicates import result_of
from builder.model.records import named, optional, read, unknown, write

CHECKS = {"oci": [{"check": "a", "outcome": "passed"}]}
RECORDS = ROOT / "tests/data/records"
REAL = RECORDS / "hpc-base-1.0-debian13-openmpi5.0-ppc64le"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    digest: str
    size: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    name: str
    layers: tuple[Layer, ...]
    seconds: float = 0.0
    path: Path = Path()
    is_signed: bool | None = None
    kind: str = named("_type", default="image")
    parent: Layer | None = optional()
    labels: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, object] = unknown()


IMAGE = {
    "name": "x",
    "layers": [{"digest": "a", "size": 1}, {"digest": "b", "size": 2}],
    "seconds": 3,
    "path": "out/x",
    "is_signed": None,
    "_type": "image",
    "labels": {"a": "b"},
    "later": {"version": [1, 2.5, None]},
}


def test_what_is_read_is_written_as_it_was() -> None:
    found = read(Image, IMAGE)
    assert found.layers[1] == Layer(digest="b", size=2)
    assert json.dumps(write(found)) == json.dumps(IMAGE)
    assert write(read(Image, {**IMAGE, "parent": {"digest": "c", "size": 0}}))["parent"] == {
        "digest": "c",
        "size": 0,
    }


def test_what_is_missing_has_its_default() -> None:
    found = read(Image, {"name": "x", "layers": []})
    assert (found.seconds, found.is_signed, found.kind, found.labels) == (0.0, None, "image", {})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": 1}, "name: expected a text, not 1"),
        ({"layers": {}}, "layers: expected a list, not {}"),
        ({"layers": [{"size": 1}]}, r"layers\[0\]\.digest: missing"),
        ({"layers": [{"digest": "a", "size": True}]}, "size: expected a whole number, not True"),
        ({"layers": [1]}, r"layers\[0\]: expected an object, not 1"),
        ({"seconds": "1"}, "seconds: expected a number, not '1'"),
        ({"is_signed": 1}, "is_signed: expected true or false, not 1"),
        ({"labels": {"a": None}}, r"labels\.a: expected a text, not None"),
        ({"path": 1}, "path: expected a text, not 1"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(change: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read(Image, {**IMAGE, **change})
    with pytest.raises(ValueError, match=r"^the file: expected an object, not \[\]$"):
        read(Image, [])
    with pytest.raises(ValueError, match=rf"^in\.json\..*{fault}"):
        read(Image, {**IMAGE, **change}, "in.json")


def test_a_manifest_of_the_main_job_is_read_and_written_byte_for_byte(tmp_path: Path) -> None:
    manifest = read_manifest(REAL)
    assert manifest is not None
    text = (REAL / "manifest.json").read_text()
    assert manifest_text(manifest) == text
    assert write_manifest(tmp_path, manifest, []) == manifest
    assert (tmp_path / "manifest.json").read_text() == text
    assert manifest.inputs.recipes[0].name == "hpc-base"
    assert {one.outcome for found in manifest.checks.values() for one in found} == {"passed"}
    assert faults_of(manifest, read_statements(REAL, manifest)) == []


def test_a_stage_record_and_a_receipt_are_read_and_written_byte_for_byte(tmp_path: Path) -> None:
    stage = read_record(RECORDS / "stage.json")
    assert stage is not None
    assert stage.indices[0].suite == "trixie"
    write_record(tmp_path / "stage.json", stage)
    receipt = read_receipt(RECORDS)
    assert receipt is not None
    assert receipt.format == "directory"
    write_json(tmp_path / "receipt.json", write(receipt))
    for name in ("stage.json", "receipt.json"):
        assert (tmp_path / name).read_text() == (RECORDS / name).read_text()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"schema": "build-images/manifest/v9"}, "schema: expected build-images/manifest/v1"),
        ({"artifacts": {"sif": {}}}, r"artifacts\.oci: missing"),
        ({"artifacts": {"oci": {}, "iso": {}}}, r"artifacts\.iso: unknown format"),
        ({"checks": {"iso-1": []}}, r"checks\.iso: unknown format"),
        ({"cell": {"arch": 1}}, r"cell\.arch: expected a text, not 1"),
    ],
)
def test_what_is_no_manifest(change: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        manifest_from(document(change))


def test_what_a_manifest_and_a_test_result_do_not_say_has_its_default() -> None:
    """All keys, so that none is called otherwise or means otherwise unseen."""
    found = manifest_from(document({"in_image_checks": [{"name": "a"}], "checks": CHECKS}))
    run = {"started": "1", "finished": "2", "emulated": False, "host": {"arch": "ppc64le"}}
    machines = [{"arch": "x86_64"}]
    run |= {"launcher": {"name": "srun", "machines": machines}, "gpu": {"handed_over": True}}
    lists = {"result": "PASSED", "passedTests": ["a"], "warnedTests": ["b"], "failedTests": ["c"]}
    check = {"name": "a", "annotations": {"outcome": "passed"}}
    predicate = {**lists, "configuration": [{"annotations": run}, check]}
    subject = {"name": "x/oci", "digest": {"sha256": "0"}}
    result = result_of({"subject": [subject], "predicate": predicate})
    texts = [pprint.pformat(asdict(one), width=100, sort_dicts=False) for one in (found, result)]
    compare_with_golden("\n".join([*texts, ""]), "records.txt")


def test_a_manifest_keeps_what_a_later_version_says() -> None:
    later = document({"later": [1], "inputs": {"later": {"a": None}}})
    text = json.loads(manifest_text(manifest_from(later)))
    assert (text["later"], text["inputs"]["later"]) == ([1], {"a": None})
