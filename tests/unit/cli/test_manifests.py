"""When an image is taken for done, and when not."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from manifest_samples import document
from samples import image

from builder.artifacts.manifests import ImageGoal, read_manifest, size_of, state_of, why_none
from builder.model import PlannedImage

FORMATS = ("oci", "sif")
INPUTS = {"files": {"matrix.yaml": "sha256:1"}, "program": "sha256:2"}


@pytest.fixture(name="planned")
def planned_image(tmp_path: Path) -> PlannedImage:
    return image(tmp_path / "project")


@pytest.fixture(name="out")
def output_folder(tmp_path: Path, planned: PlannedImage) -> Path:
    """An output folder in which the image is done."""
    folder = tmp_path / "out" / planned.identifier
    (folder / "image.oci/blobs").mkdir(parents=True)
    (folder / "image.oci/blobs/a").write_text("12345")
    (folder / "image.sif").write_text("sif")
    artifacts = {"oci": {"size": 5, "digest": "sha256:1"}, "sif": {"size": 3, "digest": "sha256:2"}}
    manifest = {
        "image": planned.identifier,
        "content_key": planned.content_key,
        "inputs": INPUTS,
        "digests": {"sbom.cdx.json": "sha256:3"},
        "artifacts": artifacts,
    }
    write(folder, document(manifest))
    return tmp_path / "out"


def write(folder: Path, manifest: Any) -> None:
    (folder / "manifest.json").write_text(json.dumps(manifest))


def change(out: Path, planned: PlannedImage, **changes: Any) -> None:
    folder = out / planned.identifier
    write(folder, {**json.loads((folder / "manifest.json").read_text()), **changes})


def state(out: Path, planned: PlannedImage, **asked: Any) -> tuple[str, str]:
    current = state_of(out, planned, ImageGoal(**{"formats": FORMATS, **asked}))
    assert (current.manifest is None) is (current.work == "build")
    return current.work, current.text


def test_what_is_done_is_done(out: Path, planned: PlannedImage) -> None:
    assert state(out, planned) == ("none", "verified, unchanged")
    assert state(out, planned, formats=("sif",)) == ("none", "verified, unchanged")


def test_what_an_earlier_version_made_has_no_digest_of_its_bill(
    out: Path, planned: PlannedImage
) -> None:
    change(out, planned, digests={})
    earlier = "built by an earlier version, which did not record"
    text = f"to build: {earlier} the digest of its bill of materials"
    assert state(out, planned) == ("build", text)


def test_what_other_runners_ran_is_kept(out: Path, planned: PlannedImage) -> None:
    """`verify --runner podman` notes its run as one of its own."""
    passed = {"check": "mpi", "outcome": "passed", "reason": ""}
    change(out, planned, checks={"oci": [passed], "oci-podman": [passed]})
    assert state(out, planned) == ("none", "verified, unchanged")


# The file in the image's folder that is written, or removed where it has no text.
DAMAGED: dict[str, tuple[str, str | None, str]] = {
    "no manifest": ("manifest.json", None, ""),
    "half a manifest": ("manifest.json", '{"schema":', ""),
    "no object": ("manifest.json", "[1]", ""),
    "a file cut short": ("image.sif", "s", ": its artifacts are incomplete"),
    "a file gone": ("image.sif", None, ": its artifacts are incomplete"),
    "a blob gone": ("image.oci/blobs/a", None, ": its artifacts are incomplete"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_not_whole_is_not_done(case: str, out: Path, planned: PlannedImage) -> None:
    name, text, reason = DAMAGED[case]
    file = out / planned.identifier / name
    file.unlink()
    if text is not None:
        file.write_text(text)
    assert state(out, planned) == ("build", f"to build{reason}")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("schema", "other/v9", "to build"),
        ("image", 1, "to build"),
        ("cell", [], "to build"),
        ("checks", [], "to build"),
        ("checks", {"oci": {"check": "x"}}, "to build"),
        ("checks", {"oci": ["x"]}, "to build"),
        ("checks", {"iso": []}, "to build"),
        ("in_image_checks", [{"name": "x"}], "to build"),
        ("inputs", "x", "to build"),
        ("evidence", {}, "to build"),
        ("content_key", "0" * 64, "to build: its inputs changed"),
        ("outcome", "failed", "to verify: failed"),
        ("outcome", "built", "to verify: built"),
    ],
)
def test_what_says_something_else_is_not_done(
    key: str, value: object, text: str, out: Path, planned: PlannedImage
) -> None:
    change(out, planned, **{key: value})
    assert state(out, planned) == (text.split()[1].rstrip(":"), text)


@pytest.mark.parametrize("outcome", ["built", "failed"])
def test_proof_is_not_made_where_none_is_asked_for(
    outcome: str, out: Path, planned: PlannedImage
) -> None:
    change(out, planned, outcome=outcome)
    assert state(out, planned, verify=False) == ("none", f"{outcome}, unchanged")


def test_other_engines_and_formats_are_not_done(out: Path, planned: PlannedImage) -> None:
    assert state(out, planned, engine="docker") == ("build", "to build: buildah built it")
    assert state(out, planned, formats=(*FORMATS, "charliecloud")) == (
        "build",
        "to build: no charliecloud yet",
    )


def test_what_was_built_with_native_tools_or_another_time_is_not_done_without(
    out: Path, planned: PlannedImage
) -> None:
    change(out, planned, inputs={**INPUTS, "native_tools": "sha256:3"})
    assert state(out, planned)[0] == "none"
    assert state(out, planned, native_tools=False) == (
        "build",
        "to build: it was built with native tools",
    )
    change(out, planned, inputs={**INPUTS, "source_date_epoch": 7})
    assert state(out, planned, epoch=7)[0] == "none"
    assert state(out, planned) == ("build", "to build: SOURCE_DATE_EPOCH changed")
    change(out, planned, inputs={**INPUTS, "native_tools": ""})
    assert state(out, planned, native_tools=False)[0] == "none"


def test_another_image_is_not_done(out: Path, planned: PlannedImage) -> None:
    cell = dataclasses.replace(planned.cell, arch="ppc64le")
    assert state(out, dataclasses.replace(planned, cell=cell)) == ("build", "to build")


def test_a_manifest_is_read_from_its_folder(out: Path, planned: PlannedImage) -> None:
    manifest = read_manifest(out / planned.identifier)
    assert manifest is not None
    assert manifest.engine == "buildah"
    assert read_manifest(out) is None


def test_sizes(out: Path, planned: PlannedImage) -> None:
    assert size_of(out / planned.identifier / "image.oci") == 5
    assert size_of(out / planned.identifier / "image.sif") == 3


@pytest.mark.parametrize("absent", ["files", "program"])
def test_what_does_not_say_what_it_was_made_from_is_made_again(
    out: Path, planned: PlannedImage, absent: str
) -> None:
    change(out, planned, inputs={name: one for name, one in INPUTS.items() if name != absent})
    text = "to build: built by an earlier version, which did not record its input files"
    assert state(out, planned) == ("build", text)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"schema": "a", "schema": "b"}', '\ufeff{"schema": "a"}']
)
def test_a_damaged_manifest_is_none_and_why_is_said(text: str, tmp_path: Path) -> None:
    assert why_none(tmp_path).endswith("not a finished image: no manifest.json")
    (tmp_path / "manifest.json").write_text(text)
    assert read_manifest(tmp_path) is None
    assert why_none(tmp_path).endswith("not a finished image: damaged, or from another version")


def test_no_pipe_is_waited_for(out: Path, planned: PlannedImage) -> None:
    file = out / planned.identifier / "manifest.json"
    file.unlink()
    os.mkfifo(file)
    assert read_manifest(file.parent) is None
