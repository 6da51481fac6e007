"""A later failure of what is published: its evidence is attached, and no tag is touched."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import proof_samples
import pytest
from fake_registry import Fake, Fault
from proof_samples import NOW
from samples import ROOT, private_file
from test_publishing import made_once, registry_in_memory  # noqa: F401 - fixtures

from builder.artifacts.manifests import write_manifest
from builder.artifacts.oci import read_layout
from builder.cli import main
from builder.model.exact_json import member
from builder.registry import Credentials, Reference, Registry, connect
from builder.registry.manifests import STATEMENT
from builder.trust.proof.attachments import ProofManifest, VerifiedProof
from builder.trust.proof.keys import as_cosign_key, generate_key, public_key
from builder.trust.proof.verification import TrustedKey, verified
from builder.verify.finished_images import read_finished

Capture = pytest.CaptureFixture[str]

DATA = ROOT / "tests/data/proof"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
TAG = "1.0-sample"
WHERE = f"app:{TAG}: x86_64: "
LATER = "2026-02-01T00:00:00+00:00"


@pytest.fixture(name="project")
def own_project(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "project"))


def publish(fake: Fake, project: Path, *more: str, attach: bool = True) -> int:
    words = ["publish", "--project", str(project), "--to", f"{fake.host}/site", "--quiet"]
    return main([*words, *(["--attach-failures"] if attach else []), *more])


def image_of(project: Path) -> Path:
    return project / "out" / f"app-{TAG}-x86_64"


def fail(project: Path, *formats: str) -> str:
    """The newest verification of an image failed, as runs in some formats say; its digest."""
    folder = image_of(project)
    for name in formats:
        file = folder / "evidence" / f"{name}.json"
        statement = json.loads(file.read_text())
        statement["predicate"] |= {"result": "FAILED", "failedTests": ["mpi"], "passedTests": []}
        statement["predicate"]["configuration"][0]["annotations"]["finished"] = LATER
        file.write_text(json.dumps(statement))
    edit(folder / "manifest.json", outcome="failed")
    return read_layout(folder / "image.oci").digest


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def repository(fake: Fake) -> Registry:
    return connect(Reference.parse(f"{fake.host}/site/app"), Credentials(files=()))


def said_of(fake: Fake, digest: str, key: Path) -> VerifiedProof:
    """What a key vouches for of an image."""
    registry = repository(fake)
    found = []
    for one in registry.referrers(digest):
        manifest = registry.manifest(one)
        layers = json.loads(manifest)["layers"]
        blobs = {layer["digest"]: fake.blobs["site/app", layer["digest"]] for layer in layers}
        found.append(ProofManifest(manifest=manifest, blobs=blobs))
    trusted = [TrustedKey(key=public_key(str(key), {}), name="site")]
    return verified(digest, found, trusted, now=NOW)


def classic_layers(manifests: dict[tuple[str, str], tuple[bytes, str]], digest: str) -> list[Any]:
    """The attestations of an image in cosign's classic format."""
    content, _ = manifests["site/app", f"{digest.replace(':', '-')}.att"]
    layers: list[Any] = json.loads(content)["layers"]
    return layers


def results(verdict: VerifiedProof) -> list[str]:
    found = proof_samples.results(verdict)
    return sorted(str(member(one.statement, "predicate", "result")) for one in found)


@pytest.mark.parametrize("listed", [True, False])
def test_a_later_failure_is_attached_and_nothing_else_is_touched(
    listed: bool, project: Path, fake: Fake, capsys: Capture
) -> None:
    fake.referrers = listed
    key = ("--key", str(private_file("cosign")))
    assert publish(fake, project, *key) == 0
    before = dict(fake.manifests)
    digest = fail(project, "oci", "sif")
    assert publish(fake, project, *key) == 5
    said = capsys.readouterr().err
    assert "2 releases selected; no image was published, and no tag was set:" in said
    assert f"{WHERE}it is not verified: failed\n" in said
    files = "evidence/oci.json, evidence/sif.json"
    assert f"{WHERE}evidence attached to {fake.host}/site/app@{digest}: {files}\n" in said
    changed = {key for key, held in fake.manifests.items() if before.get(key) != held}
    name = digest.replace(":", "-")
    assert len(classic_layers(before, digest)) == 5
    assert classic_layers(fake.manifests, digest)[:5] == classic_layers(before, digest)
    assert len(classic_layers(fake.manifests, digest)) == 7
    tags = {tag for _, tag in changed if ":" not in tag}
    assert tags == {f"{name}.att"} | (set() if listed else {name})
    verdict = said_of(fake, digest, DATA / "cosign.pub")
    assert results(verdict) == ["FAILED", "FAILED", "PASSED", "PASSED", "PASSED"]
    last = dict(fake.manifests)
    assert publish(fake, project, *key) == 5
    assert fake.manifests == last, "the same again adds nothing"


def test_what_failed_on_one_machine_makes_no_published_image_worse_unasked(
    project: Path, fake: Fake, capsys: Capture
) -> None:
    assert publish(fake, project, attach=False) == 0
    before = dict(fake.manifests)
    fail(project, "oci")
    assert publish(fake, project, attach=False) == 5
    said = capsys.readouterr().err
    assert f"{WHERE}it is not verified: failed\n" in said
    assert "--attach-failures attaches the failures" in said
    assert fake.manifests == before


RESULTS = {"passed": "PASSED", "warned": "WARNED", "failed": "FAILED"}
OUTCOMES = {"passed": "passed", "warned": "skipped", "failed": "failed"}


def add_optional_run(project: Path, run: str, how: str) -> None:
    """Add evidence of a run that an image need not have, made of that of its OCI layout."""
    folder = image_of(project)
    statement = json.loads((folder / "evidence/oci.json").read_text())
    predicate = statement["predicate"]
    checks = predicate["configuration"][1:]
    names = [one["name"] for one in checks]
    predicate |= {f"{one}Tests": names if one == how else [] for one in RESULTS}
    predicate["result"] = RESULTS[how]
    for one in checks:
        one["annotations"]["outcome"] = OUTCOMES[how]
    name = f"evidence/{run}.json"
    (folder / name).write_text(json.dumps(statement))
    manifest = read_finished(folder)
    evidence = tuple(sorted([*manifest.evidence, name]))
    write_manifest(folder, dataclasses.replace(manifest, evidence=evidence), [name])


@pytest.mark.parametrize("how", RESULTS)
def test_optional_runs_that_failed_are_not_signed_either(
    how: str, project: Path, fake: Fake
) -> None:
    """Every policy would refuse the image, whose publication had succeeded."""
    add_optional_run(project, "oci-bench", how)
    assert publish(fake, project, "--key", str(private_file("cosign")), attach=False) == 0
    digest = read_layout(image_of(project) / "image.oci").digest
    published = ["PASSED"] * (3 + (how == "passed"))
    assert results(said_of(fake, digest, DATA / "cosign.pub")) == published


@pytest.mark.parametrize("how", RESULTS)
def test_optional_runs_neither_stop_a_publication_nor_spoil_what_is_published(
    how: str, project: Path, fake: Fake
) -> None:
    """Those of a disturbed measurement, and of ranks that no Slurm started, stood in its way."""
    add_optional_run(project, "oci-bench", how)
    assert publish(fake, project, attach=False) == 0
    digest = read_layout(image_of(project) / "image.oci").digest
    published = 3 + (how == "passed")
    assert len(repository(fake).referrers(digest, STATEMENT)) == published
    assert publish(fake, project) == 0
    published += how == "failed"
    assert len(repository(fake).referrers(digest, STATEMENT)) == published


def test_who_tells_of_a_failure_does_not_sign_the_image(
    project: Path, fake: Fake, tmp_path: Path
) -> None:
    assert publish(fake, project, "--key", str(private_file("cosign"))) == 0
    digest = fail(project, "oci")
    other = generate_key()
    (tmp_path / "other.key").write_bytes(as_cosign_key(other, b"correct horse"))
    (tmp_path / "other.key").chmod(0o600)
    (tmp_path / "other.pub").write_bytes(other.public.pem)
    assert publish(fake, project, "--key", str(tmp_path / "other.key")) == 5
    verdict = said_of(fake, digest, tmp_path / "other.pub")
    assert results(verdict) == ["FAILED"]
    assert not verdict.signatures


def test_without_a_key_it_is_said_that_nobody_counts_it(
    project: Path, fake: Fake, capsys: Capture
) -> None:
    assert publish(fake, project) == 0
    digest = fail(project, "charliecloud")
    count = len(repository(fake).referrers(digest, STATEMENT))
    assert publish(fake, project) == 5
    note = "it is not signed, so policies ignore it: name a key with --key"
    assert f"evidence/charliecloud.json; {note}" in capsys.readouterr().err
    assert len(repository(fake).referrers(digest, STATEMENT)) == count + 1


def test_a_dry_run_attaches_nothing(project: Path, fake: Fake, capsys: Capture) -> None:
    assert publish(fake, project) == 0
    image = f"{fake.host}/site/app@{fail(project, 'oci')}"
    fake.asked.clear()
    assert publish(fake, project, "--dry-run") == 5
    assert f"{WHERE}evidence would be attached to {image}" in capsys.readouterr().err
    assert not fake.requests("^(PUT|POST|PATCH)")


def test_what_is_not_published_is_not_told_of(project: Path, fake: Fake, capsys: Capture) -> None:
    fail(project, "oci")
    assert publish(fake, project) == 5
    said = capsys.readouterr().err
    assert "2 releases selected; nothing was published:" in said
    assert "attached" not in said
    assert not fake.requests("^(PUT|POST|PATCH)")


def test_evidence_of_other_inputs_counts_and_of_another_image_does_not(
    project: Path, fake: Fake, capsys: Capture
) -> None:
    assert publish(fake, project) == 0
    digest = fail(project, "oci", "sif", "charliecloud")
    folder = image_of(project)
    edit(folder / "manifest.json", content_key="0")
    sif = json.loads((folder / "evidence/sif.json").read_text())
    sif["subject"][0]["digest"]["sha256"] = "0" * 64
    assert sif["subject"][0]["name"] == f"{folder.name}/oci"
    edit(folder / "evidence/sif.json", **sif)
    edit(folder / "evidence/charliecloud.json", predicateType="x")
    assert publish(fake, project) == 5
    said = capsys.readouterr().err
    assert f"attached to {fake.host}/site/app@{digest}: evidence/oci.json;" in said


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault(pattern="PUT .*/manifests/sha256:", status=403, times=9), "answers 403"),
        (Fault(pattern="GET .*/manifests/sha256:", status=401, times=9), "answers 401"),
    ],
)
def test_what_goes_wrong_with_it_is_said_with_the_rest(
    fault: Fault, why: str, project: Path, fake: Fake, capsys: Capture
) -> None:
    assert publish(fake, project) == 0
    digest = fail(project, "oci")
    fake.faults = [fault]
    assert publish(fake, project) == 5
    said = capsys.readouterr().err
    assert f"{WHERE}it is not verified: failed\n" in said
    [line] = [one for one in said.splitlines() if f"app@{digest}: evidence/oci.json: " in one]
    assert line.startswith(f"{WHERE}evidence could not be attached to ")
    assert why in line


def test_a_key_that_cannot_be_read_hides_no_reason(
    project: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert publish(fake, project) == 0
    fail(project, "oci")
    monkeypatch.delenv("COSIGN_PASSWORD")
    assert publish(fake, project, "--key", str(private_file("cosign"))) == 5
    said = capsys.readouterr().err
    assert f"{WHERE}it is not verified: failed\n" in said
    assert "COSIGN_PASSWORD is not set" in said
