"""Provenance: as SLSA has it, complete, and without what is nobody's business."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from manifest_samples import record
from proof_samples import VECTORS, evidence
from samples import compare_with_golden

from builder import __version__
from builder.artifacts.manifests import with_digests
from builder.build.inputs import files_of, program_digest, project_digests
from builder.model import predicates
from builder.model.errors import BadInput
from builder.model.manifest import Manifest
from builder.model.predicates import builder_of
from builder.trust.proof import statements
from builder.trust.proof.statements import provenance, statements_of

SCHEMA = json.loads((VECTORS / "slsa-provenance-v1.schema.json").read_text())


def digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


INPUTS: dict[str, Any] = {
    "base": {
        "name": "debian13",
        "image": "localhost/build-images/debian13:547618fa9679-ppc64le",
        "key": "k" * 64,
        "digest": digest("base"),
        "made": "2026-11-21T16:29:23+00:00",
    },
    "build-images": "0.1.0",
    "compiler": "hpccm 26.5.0",
    "files": {"matrix.yaml": digest("matrix"), "lock.yaml": digest("lock")},
    "native_tools": "",
    "program": digest("program"),
    "recipes": [{"name": "hpc-base", "version": "1.0"}],
    "source_date_epoch": 1,
    "sources": {"debian-source:openmpi/5.0.7": digest("source")},
    "specs": {"Dockerfile": digest("Dockerfile")},
}
MANIFEST: dict[str, Any] = {
    "artifacts": {
        "oci": {"digest": digest("oci"), "path": "image.oci"},
        "sif": {"digest": digest("sif"), "path": "image.sif"},
    },
    "cell": dict.fromkeys(("recipe_version", "cuda", "mpi", "cpu", "flavour"), "")
    | {"arch": "ppc64le", "base": "debian13", "recipe": "hpc-base"},
    "content_key": "c0ffee",
    "emulated": True,
    "engine": "buildah",
    "image": "hpc-base-1.0-debian13-openmpi5.0-ppc64le",
    "inputs": INPUTS,
    "started": "2026-11-21T18:04:50+01:00",
    "tools": {"buildah": "1.28.2"},
}


def written(**inputs: Any) -> dict[str, Any]:
    manifest = {**MANIFEST, "inputs": {**INPUTS, **inputs}}
    result: dict[str, Any] = json.loads(provenance(record(manifest)))
    jsonschema.validate(result, SCHEMA)
    return result


def dependencies(**inputs: Any) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = written(**inputs)["predicate"]["buildDefinition"][
        "resolvedDependencies"
    ]
    return result


def test_it_is_what_the_specification_asks_for() -> None:
    """Every key and value, so that none changes unseen. UPDATE_GOLDEN=1 writes it anew."""
    result = written()
    assert result["predicate"]["runDetails"]["builder"].pop("id") == builder_of({})
    compare_with_golden(json.dumps(result, indent=1) + "\n", "provenance.json")


def test_the_materials() -> None:
    names = [entry.get("name") or entry["uri"] for entry in dependencies()]
    assert names == [
        "lock.yaml",
        "matrix.yaml",
        "base image debian13",
        "debian-source:openmpi/5.0.7",
    ]
    assert all("sha256" in entry["digest"] for entry in dependencies())
    base = {name: INPUTS["base"][name] for name in ("made", "key")}
    assert dependencies()[2]["annotations"] == base


@pytest.mark.parametrize(
    ("image", "uri"),
    [
        ("nvcr.io/nvidia/cuda:12.4@" + digest("x"), "pkg:oci/cuda@sha256%3A{}?tag=12.4"),
        ("docker.io/library/ubuntu@" + digest("x"), "pkg:oci/ubuntu@sha256%3A{}"),
        ("localhost:5000/ubuntu:22.04", "pkg:oci/ubuntu?tag=22.04"),
    ],
)
def test_a_base_from_a_registry(image: str, uri: str) -> None:
    base = {"name": "cuda", "image": image, "key": "", "digest": "", "made": ""}
    [result] = [
        entry for entry in dependencies(base=base) if entry.get("name") == "base image cuda"
    ]
    assert result["uri"] == uri.format(digest("x").removeprefix("sha256:"))
    assert ("digest" in result) == ("@" in image)


def test_nothing_of_this_machine_and_no_secret_is_in_it() -> None:
    url = "https://user:secret@example.org:8443/a/file.tar.gz?token=secret#secret"
    text = json.dumps(written(sources={url: digest("source")}))
    assert "https://example.org:8443/a/file.tar.gz" in text
    for word in ("secret", "token", "localhost", "image.oci"):
        assert word not in text


def without(key: str) -> Manifest:
    inputs = {name: value for name, value in INPUTS.items() if name != key}
    return record({**MANIFEST, "inputs": inputs})


def with_program(value: Any) -> Manifest:
    manifest = record(MANIFEST)
    return replace(manifest, inputs=replace(manifest.inputs, program=value))


@pytest.mark.parametrize(
    "manifest",
    [
        *map(without, ("files", "program", "specs", "base", "sources")),
        *map(with_program, ("", "sha256:", "md5:00", "sha256:" + "G" * 64, 1)),
    ],
)
def test_a_manifest_of_an_earlier_version_or_with_a_digest_that_is_none(
    manifest: Manifest,
) -> None:
    with pytest.raises(BadInput, match="does not list all inputs of the build"):
        provenance(manifest)


def test_what_built_it() -> None:
    image = {**MANIFEST, "builder": "https://ci.example.org/x"}
    details = json.loads(provenance(record(image)))["predicate"]["runDetails"]
    assert details["builder"]["id"] == "https://ci.example.org/x"
    assert builder_of({}) == f"pkg:generic/build-images@{__version__}"
    github = {
        "GITHUB_SERVER_URL": "https://github.example.org",
        "GITHUB_WORKFLOW_REF": "site/images/.github/workflows/build.yml@refs/heads/main",
        "GITHUB_TOKEN": "secret",
    }
    assert builder_of(github) == (
        "https://github.example.org/site/images/.github/workflows/build.yml@refs/heads/main"
    )
    gitlab = {"GITLAB_CI": "true", "CI_PROJECT_URL": "https://gitlab.example.org/site/images"}
    assert builder_of(gitlab) == "https://gitlab.example.org/site/images"


def test_the_projects_files_by_digest(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "a.yaml").write_text("a")
    (tmp_path / "matrix.yaml").write_text("inherit: false")
    (tmp_path / "README.md").write_text("not declared")
    assert project_digests(tmp_path) == {
        "matrix.yaml": digest("inherit: false"),
        "recipes/a.yaml": digest("a"),
    }


def test_the_files_of_one_image() -> None:
    names = ["recipes/a.yaml", "recipes/b.yaml", "base-images/x.yaml", "base-images/y.yaml"]
    declared = dict.fromkeys(["matrix.yaml", *names], digest("x"))
    assert list(files_of(declared, ["a"], ["y"])) == [
        "matrix.yaml",
        "recipes/a.yaml",
        "base-images/y.yaml",
    ]
    assert list(files_of(declared, ["a", "of another name"], ["y"])) == [
        "matrix.yaml",
        "recipes/a.yaml",
        "recipes/b.yaml",
        "base-images/y.yaml",
    ]


def test_the_program_by_digest(tmp_path: Path) -> None:
    assert program_digest() == program_digest()
    (tmp_path / "a.py").write_text("a")
    entry = program_digest(tmp_path)
    (tmp_path / "a.pyc").write_text("compiled")
    assert program_digest(tmp_path) == entry
    (tmp_path / "b.py").write_text("a")
    two = program_digest(tmp_path)
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert len({entry, two, program_digest(tmp_path)}) == 3


def folder_of(tmp_path: Path, **changes: Any) -> tuple[Path, Manifest]:
    """An image's output folder with its manifest."""
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "oci.json").write_bytes(evidence(digest("oci")))
    (tmp_path / "sbom.cdx.json").write_text('{"bomFormat": "CycloneDX"}')
    files = {"evidence": ["evidence/oci.json"], "sbom": "sbom.cdx.json"}
    manifest = record({**MANIFEST, **files, **changes})
    return tmp_path, with_digests(tmp_path, manifest, manifest.bound_names)


def test_the_statements_of_a_folder(tmp_path: Path) -> None:
    folder, manifest = folder_of(tmp_path)
    result = statements_of(folder, manifest)
    assert result[0] == evidence(digest("oci"))
    types = [statements.statement_of(entry, digest("oci"))["predicateType"] for entry in result]
    assert types == [predicates.TEST_RESULT, predicates.CYCLONEDX, predicates.SLSA]


def test_without_evidence_there_is_nothing_to_sign(tmp_path: Path) -> None:
    folder, manifest = folder_of(tmp_path, evidence=[])
    with pytest.raises(BadInput, match="nothing about this image is proven"):
        statements_of(folder, manifest)


@pytest.mark.parametrize("name", ["sbom.cdx.json", "evidence/oci.json"])
def test_what_lies_there_of_another_image_is_not_signed(tmp_path: Path, name: str) -> None:
    folder, manifest = folder_of(tmp_path)
    before = statements_of(folder, manifest)
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert statements_of(folder, manifest) == before
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    with pytest.raises(BadInput, match=f"{name}: its digest differs from manifest.json"):
        statements_of(folder, manifest)
    earlier = replace(manifest, digests={})
    with pytest.raises(BadInput, match=r"manifest\.json has no digest for it"):
        statements_of(folder, earlier)


@pytest.mark.parametrize("text", ["", "[]", "\xff"])
def test_a_file_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    folder, manifest = folder_of(tmp_path)
    (folder / "sbom.cdx.json").write_text(text, encoding="latin-1")
    bound = with_digests(folder, manifest, ["sbom.cdx.json"])
    with pytest.raises(BadInput, match=r"sbom\.cdx\.json: the file is not (valid|a) JSON"):
        statements_of(folder, bound)
    (folder / "evidence" / "oci.json").unlink()
    with pytest.raises(BadInput, match=r"oci\.json: cannot be read"):
        statements_of(folder, manifest)


@pytest.mark.parametrize("emulated", [False, True])
def test_emulated_is_what_the_build_was(emulated: bool) -> None:
    """And not what later checks were, which may be run elsewhere."""
    manifest = {**MANIFEST, "emulated": not emulated, "emulated_build": emulated}
    result = json.loads(provenance(record(manifest)))
    parameters = result["predicate"]["buildDefinition"]["internalParameters"]
    assert parameters["emulated"] is emulated
