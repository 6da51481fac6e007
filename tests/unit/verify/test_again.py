"""Proving again what a folder from elsewhere holds: its manifest is not to be trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.cli import main
from builder.verify.again import emulation, merged

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
    assert second["outcome"] == "verified", "a further runner is optional"
    third = merged(second, part("oci", "failed"))
    assert third["outcome"] == "failed"
    assert merged(third, part("oci", "passed"))["outcome"] == "verified", "a later pass counts"


def test_without_the_usual_runner_any_other_decides() -> None:
    first = merged({**MANIFEST, "evidence": []}, part("oci-podman", "failed"))
    assert first["outcome"] == "failed"
    assert merged(first, part("oci", "passed"))["outcome"] == "verified"


def test_forged_outcomes_of_another_runner_are_not_repeated() -> None:
    first = merged({**MANIFEST, "evidence": []}, part("oci", "passed"))
    again = merged(first, part("oci-docker", "passed"), {"evidence/oci.json": None})
    assert again["outcome"] == "failed"
    assert [one["check"] for one in again["checks"]["oci"]] == ["mpi", "agreement"]
    assert "cannot be read" in again["checks"]["oci"][-1]["reason"]


def test_an_image_is_not_verified_before_each_format_was_run() -> None:
    artifacts: dict[str, object] = {"oci": {}, "sif": {}}
    assert merged({**MANIFEST, "artifacts": artifacts}, part("oci", "passed"))["outcome"] == "built"


def test_what_launchers_started_stays_and_makes_no_image_fail() -> None:
    proof = "evidence/sif-mpi-hybrid-srun.json"
    launched = {"sif": [{"check": "mpi-hybrid-srun", "outcome": "failed"}]}
    first = {**MANIFEST, "launched": launched, "evidence": [proof]}
    again = merged(first, part("oci", "passed"))
    assert (again["outcome"], again["launched"]) == ("verified", launched)
    assert again["evidence"] == ["evidence/oci.json", proof]


def launched_emulated(**more: object) -> dict[str, object]:
    """What was built and checked emulated, ranks included."""
    return {
        **MANIFEST,
        "checks": {name: [{"check": "mpi", "outcome": "passed"}] for name in ("oci", "sif")},
        "launched": {"sif": [{"check": "mpi-hybrid-srun", "outcome": "passed"}]},
        "emulated": True,
        **more,
    }


@pytest.mark.parametrize(
    "before",
    [
        launched_emulated(emulated_runs=["oci", "sif", "sif-mpi-hybrid-srun"]),
        launched_emulated(),  # as earlier versions wrote it
    ],
)
def test_emulated_is_what_one_of_the_kept_outcomes_is(before: dict[str, object]) -> None:
    native = {**part("oci", "passed"), "emulated": False}
    first = merged(before, native)
    assert (first["emulated"], first["emulated_runs"]) == (True, ["sif", "sif-mpi-hybrid-srun"])
    second = merged(first, {**part("sif", "passed"), "emulated": False})
    assert (second["emulated"], second["emulated_runs"]) == (True, ["sif-mpi-hybrid-srun"])
    third = {**second, **emulation(second, {"sif-mpi-hybrid-srun": False})}
    assert (third["emulated"], third["emulated_runs"]) == (False, [])
    fourth = merged(third, {**part("oci-docker", "passed"), "emulated": True})
    assert (fourth["emulated"], fourth["emulated_runs"]) == (True, ["oci-docker"])


def test_an_image_that_was_built_emulated_and_never_checked_is_emulated() -> None:
    unchecked = {**MANIFEST, "emulated": True, "emulated_build": True, "emulated_runs": []}
    assert emulation(unchecked, {"sif-mpi-hybrid-srun": False})["emulated"] is True
    native = merged(unchecked, {**part("oci", "passed"), "emulated": False})
    assert (native["emulated"], native["emulated_build"]) == (False, True)


GPU = {"check": "gpu-compute", "outcome": "passed"}
NO_GPU = {"check": "gpu-compute", "outcome": "skipped"}
NOTHING = {"check": "gpu-compute", "outcome": "skipped", "data": {"applies": False}}
BROKEN = {"check": "gpu-compute", "outcome": "failed"}
NOT_WITHHELD = {"check": "gpu-withheld", "outcome": "failed"}


@pytest.mark.parametrize(
    ("kept", "now", "proven"),
    [
        ({"oci": NO_GPU}, {"sif": GPU}, False),
        ({}, {"sif": GPU}, False),
        ({"oci": GPU}, {"sif": GPU}, True),
        ({"oci": GPU}, {"sif": NOTHING}, True),
        ({"oci": GPU}, {"sif": NO_GPU}, False),
        ({"oci": NO_GPU, "sif": GPU}, {"oci-docker": GPU}, True),
        ({"oci": GPU, "sif": GPU}, {"oci-docker": BROKEN}, False),
        ({"oci": BROKEN, "sif": GPU}, {"oci": GPU}, True),
        ({"oci": GPU, "sif": GPU}, {"sif-2": NOT_WITHHELD}, False),
    ],
)
def test_proven_on_a_gpu_is_what_every_format_is(
    kept: dict[str, object], now: dict[str, object], proven: bool
) -> None:
    """This run alone says nothing of formats that it did not run."""
    manifest = {
        **MANIFEST,
        "in_image_checks": [{"name": "gpu-compute", "needs": ["gpu"]}],
        "artifacts": {"oci": {}, "sif": {}},
        "checks": {name: [one] for name, one in kept.items()},
    }
    found = {name: [one] for name, one in now.items()}
    new = {"checks": found, "evidence": [], "proven_on_gpu": GPU in now.values()}
    assert merged(manifest, new)["proven_on_gpu"] is proven


def test_an_image_without_checks_of_gpus_is_not_judged_by_them() -> None:
    assert merged(MANIFEST, part("oci", "passed"))["proven_on_gpu"] is None
