"""Proving again what a folder from elsewhere holds: its manifest is not to be trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.cli import main
from builder.cli.again import merged

MANIFEST = {
    "schema": "build-images/manifest/v1",
    "image": "x/../../../victim",
    "cell": {"arch": "x86_64"},
    "content_key": "0",
    "engine": "buildah",
    "outcome": "verified",
    "checks": {},
    "in_image_checks": [],
    "artifacts": {
        "oci": {"format": "oci", "path": "../../victim", "digest": "sha256:0", "size": 1}
    },
}


def test_no_path_of_a_manifest_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    folder = tmp_path / "received"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    assert main(["verify", str(folder)]) == 2
    assert "image.oci: the manifest names this artifact" in capsys.readouterr().err
    assert (victim / "precious").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "build-images/manifest/v1"}'])
def test_what_is_no_manifest_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert main(["verify", str(tmp_path)]) == 2
    assert "no finished image" in capsys.readouterr().err


def part(name: str, outcome: str) -> dict[str, object]:
    """What one run adds to a manifest."""
    found = [{"check": "mpi", "outcome": outcome}]
    return {"checks": {name: found}, "evidence": [f"evidence/{name}.json"], "outcome": outcome}


def test_what_another_runner_found_stays() -> None:
    first = merged({**MANIFEST, "evidence": []}, part("oci", "passed"))
    assert first["outcome"] == "verified"
    second = merged(first, part("oci-docker", "failed"))
    assert second["checks"].keys() == {"oci", "oci-docker"}
    assert second["evidence"] == ["evidence/oci-docker.json", "evidence/oci.json"]
    assert second["outcome"] == "failed"
    third = merged(second, part("oci", "passed"))
    assert third["outcome"] == "failed"
    assert merged(third, part("oci-docker", "skipped"))["outcome"] == "verified"


def test_what_launchers_started_stays_and_makes_no_image_fail() -> None:
    proof = "evidence/sif-mpi-hybrid-srun.json"
    launched = {"sif": [{"check": "mpi-hybrid-srun", "outcome": "failed"}]}
    first = {**MANIFEST, "launched": launched, "evidence": [proof]}
    again = merged(first, part("oci", "passed"))
    assert (again["outcome"], again["launched"]) == ("verified", launched)
    assert again["evidence"] == ["evidence/oci.json", proof]
