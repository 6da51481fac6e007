"""Proving again what a folder from elsewhere holds: its manifest is not to be trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from manifest_samples import document, record

from builder.cli import main, verify
from builder.model.agreement import Statement
from builder.model.manifest import Manifest, ProvenImage
from builder.model.records import write
from builder.verify.finished_images import merged, with_emulation
from builder.verify.proof import Verified

MANIFEST = {
    "image": "x/../../../victim",
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
    (folder / "manifest.json").write_text(json.dumps(document(MANIFEST)))
    assert main(["verify", str(folder)]) == 2
    assert "image.oci: the manifest names this artifact" in capsys.readouterr().err
    assert (victim / "precious").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "build-images/manifest/v1"}'])
def test_what_is_no_manifest_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert main(["verify", str(tmp_path)]) == 2
    assert "not a finished image" in capsys.readouterr().err


def proven_now(before: Manifest, checks: Mapping[str, Any], **more: Any) -> ProvenImage:
    """The record of a verification of an image, with these outcomes by run."""
    same: dict[str, Any] = {one.name: getattr(before, one.name) for one in fields(ProvenImage)}
    found = record({"checks": {name: [one] for name, one in checks.items()}}).checks
    files = tuple(f"evidence/{name}.json" for name in checks)
    return ProvenImage(**{**same, "checks": found, "evidence": files, "emulated": False, **more})


def then(
    before: Manifest,
    name: str,
    outcome: str,
    statements: Mapping[str, Statement | None] | None = None,
    **more: object,
) -> Manifest:
    """The manifest after one more run."""
    found = proven_now(before, {name: {"check": "mpi", "outcome": outcome}}, **more)
    return merged(before, found, statements)


@pytest.mark.parametrize(
    ("outcome", "state", "untried", "code"),
    [
        ("passed", "verified", {}, 0),
        ("failed", "failed", {"sif": "no apptainer"}, 1),
        ("passed", "verified", {"sif": "no apptainer"}, 4),
        ("failed", "verified", {}, 1),  # a further run, which is optional
        ("passed", "failed", {}, 1),  # by an earlier run
    ],
)
def test_what_the_command_says(
    outcome: str,
    state: str,
    untried: Mapping[str, str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = "oci/mpi: 4 ranks\n  | a\n" if (outcome, state) == ("failed", "verified") else ""
    checks = {"oci": {"check": "mpi", "outcome": outcome, "reason": "4 ranks"}}
    checks["oci"]["output"] = "a" if shown else ""
    found = proven_now(record(MANIFEST), checks, outcome=state, proven_on_gpu=False)
    done = Verified(record=found, runs=("oci",), untried=untried)
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("builder.verify.preparation.versions_of", lambda *_: {})
    monkeypatch.setattr(verify, "prove_again", lambda *_, **__: done)
    (tmp_path / "manifest.json").write_text(json.dumps(document(MANIFEST)))
    assert main(["verify", str(tmp_path)]) == code
    out, err = capsys.readouterr()
    checked = f"  oci          mpi              {outcome:8} 4 ranks\n"
    end = "".join(f"  {name}          not tried: {reason}\n" for name, reason in untried.items())
    assert out == f"{found.image}: {state}  not proven on a GPU\n{checked}{end}{shown}"
    assert ("  sif: no apptainer" in err) is (code == 4)
    assert main(["verify", str(tmp_path), "--json"]) == code
    assert json.loads(capsys.readouterr().out) == write(found)


def test_what_another_runner_found_stays() -> None:
    first = then(record(MANIFEST), "oci", "passed")
    assert first.outcome == "verified"
    second = then(first, "oci-docker", "failed")
    assert second.checks.keys() == {"oci", "oci-docker"}
    assert second.evidence == ("evidence/oci-docker.json", "evidence/oci.json")
    assert second.outcome == "verified", "a further runner is optional"
    third = then(second, "oci", "failed")
    assert third.outcome == "failed"
    assert then(third, "oci", "passed").outcome == "verified", "a later pass counts"


def test_without_the_usual_runner_any_other_decides() -> None:
    first = then(record(MANIFEST), "oci-podman", "failed")
    assert first.outcome == "failed"
    assert then(first, "oci", "passed").outcome == "verified"


def test_forged_outcomes_of_another_runner_are_not_repeated() -> None:
    first = then(record(MANIFEST), "oci", "passed")
    again = then(first, "oci-docker", "passed", {"evidence/oci.json": None})
    assert again.outcome == "failed"
    assert [one.check for one in again.checks["oci"]] == ["mpi", "agreement"]
    assert "cannot be read" in again.checks["oci"][-1].reason


def test_an_image_is_not_verified_before_each_format_was_run() -> None:
    both = record({**MANIFEST, "artifacts": {"oci": {}, "sif": {}}})
    assert then(both, "oci", "passed").outcome == "built"


def test_what_launchers_started_stays_and_makes_no_image_fail() -> None:
    proof = "evidence/sif-mpi-hybrid-srun.json"
    launched = {"sif": [{"check": "mpi-hybrid-srun", "outcome": "failed"}]}
    first = record({**MANIFEST, "launched": launched, "evidence": [proof]})
    again = then(first, "oci", "passed")
    assert (again.outcome, again.launched) == ("verified", first.launched)
    assert again.evidence == ("evidence/oci.json", proof)


def launched_emulated(**more: object) -> Manifest:
    """An image that was built and checked emulated, ranks included."""
    return record(
        {
            **MANIFEST,
            "checks": {name: [{"check": "mpi", "outcome": "passed"}] for name in ("oci", "sif")},
            "launched": {"sif": [{"check": "mpi-hybrid-srun", "outcome": "passed"}]},
            "emulated": True,
            **more,
        }
    )


@pytest.mark.parametrize(
    "before",
    [
        launched_emulated(emulated_runs=["oci", "sif", "sif-mpi-hybrid-srun"]),
        launched_emulated(),  # as earlier versions wrote it
    ],
)
def test_emulated_is_what_one_of_the_kept_outcomes_is(before: Manifest) -> None:
    first = then(before, "oci", "passed")
    assert (first.emulated, first.emulated_runs) == (True, ("sif", "sif-mpi-hybrid-srun"))
    second = then(first, "sif", "passed")
    assert (second.emulated, second.emulated_runs) == (True, ("sif-mpi-hybrid-srun",))
    third = with_emulation(second, second, {"sif-mpi-hybrid-srun": False})
    assert (third.emulated, third.emulated_runs) == (False, ())
    assert write(third)["emulated_runs"] == []
    fourth = then(third, "oci-docker", "passed", emulated=True)
    assert (fourth.emulated, fourth.emulated_runs) == (True, ("oci-docker",))


def test_an_image_that_was_built_emulated_and_never_checked_is_emulated() -> None:
    unchecked = replace(record(MANIFEST), emulated=True, emulated_build=True, emulated_runs=())
    assert with_emulation(unchecked, unchecked, {"sif-mpi-hybrid-srun": False}).emulated is True
    natively = replace(unchecked, emulated_build=False)
    assert with_emulation(natively, natively, {"sif-mpi-hybrid-srun": False}).emulated is False
    native = then(unchecked, "oci", "passed")
    assert (native.emulated, native.emulated_build) == (False, True)


GPU = {"check": "gpu-compute", "outcome": "passed"}
NO_GPU = {"check": "gpu-compute", "outcome": "skipped"}
NOTHING = {"check": "gpu-compute", "outcome": "skipped", "data": {"applies": False}}
BROKEN = {"check": "gpu-compute", "outcome": "failed"}
ON_PROCESSOR = {"check": "gpu-compute", "outcome": "passed", "data": {"gpu_here": False}}
OTHER = {"check": "mpi", "outcome": "passed"}
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
        ({"oci": GPU, "sif": GPU}, {"oci-docker": NO_GPU}, True),
        ({"oci": GPU, "sif": GPU}, {"oci-docker": BROKEN}, False),
        ({"oci": BROKEN, "sif": GPU}, {"oci": GPU}, True),
        ({"oci": GPU, "sif": GPU}, {"sif-2": NOT_WITHHELD}, False),
        ({"oci": GPU}, {"sif": ON_PROCESSOR}, False),
        ({"oci": ON_PROCESSOR}, {"sif": ON_PROCESSOR}, False),
        ({"oci": NOTHING}, {"sif": NOTHING}, False),
        ({"oci": GPU}, {"sif": OTHER}, False),
    ],
)
def test_proven_on_a_gpu_is_what_every_format_is(
    kept: dict[str, object], now: dict[str, object], proven: bool
) -> None:
    """This run alone says nothing of formats that it did not run."""
    manifest = record(
        {
            **MANIFEST,
            "in_image_checks": [{"name": "gpu-compute", "needs": ["gpu"]}],
            "artifacts": {"oci": {}, "sif": {}},
            "checks": {name: [one] for name, one in kept.items()},
        }
    )
    new = proven_now(manifest, now, proven_on_gpu=GPU in now.values())
    assert merged(manifest, new).proven_on_gpu is proven


def test_an_image_without_checks_of_gpus_is_not_judged_by_them() -> None:
    assert then(record(MANIFEST), "oci", "passed").proven_on_gpu is None
