"""What an image carries is checked, whatever a manifest says; and what ran is what was seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_releases import images_of, make_images, make_project
from samples import a_file, tar_bytes
from test_check_outcomes import a_check

from builder.artifacts.tree import comparable, entries_of_tar
from builder.cli import main
from builder.cli.proving import seen_arch
from builder.model import FAILED, PASSED, Outcome
from builder.spec.checks import SCRIPTS
from builder.verify import FormatTree, Target
from builder.verify.carried import lacking_mpi, with_carried


def tree_of(*scripts: str) -> FormatTree:
    import io  # noqa: PLC0415

    members = [a_file(f"{SCRIPTS[1:]}/{name}", mode=0o755) for name in scripts]
    return FormatTree.of(comparable(entries_of_tar(io.BytesIO(tar_bytes(*members)))))


def target(*names: str, **more: Any) -> Target:
    checks = tuple(a_check(name) for name in names)
    return Target(identifier="x", arch="x86_64", environment={}, checks=checks, **more)


def scripts(found: Target) -> dict[str, str]:
    return {check.name: check.script for check in found.checks}


def test_an_emptied_list_of_checks_is_the_images_own() -> None:
    found = with_carried(target(), [tree_of("10-architecture", "20-mpi")])
    assert scripts(found) == {
        "architecture": f"{SCRIPTS}/10-architecture",
        "mpi": f"{SCRIPTS}/20-mpi",
    }


def test_a_script_is_the_one_in_the_image() -> None:
    """That of `a_check` is another path, at which anything might be."""
    found = with_carried(target("mpi", "ucx"), [tree_of("10-mpi")])
    assert scripts(found) == {"mpi": f"{SCRIPTS}/10-mpi", "ucx": f"{SCRIPTS}/ucx"}
    assert with_carried(target("mpi"), []) == target("mpi")


def test_an_mpi_without_its_check_fails() -> None:
    [outcome] = lacking_mpi(target("architecture", mpi="openmpi5.0"))
    assert (outcome.check, outcome.outcome) == ("mpi", FAILED)
    assert outcome.reason == "the image is for openmpi5.0, and has no check mpi"
    assert lacking_mpi(target("mpi", mpi="openmpi5.0")) == lacking_mpi(target()) == ()


def test_emulated_is_what_was_seen() -> None:
    seen = Outcome(check="architecture", outcome=PASSED, reason="", data={"uname": "ppc64le"})
    assert seen_arch([seen], "x86_64") == "ppc64le"
    assert seen_arch([], "x86_64") == "x86_64"


def test_a_manifest_of_another_architecture_than_its_image_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    project = make_project(tmp_path / "project", recipes=["tools"], architectures=["ppc64le"])
    make_images(project, size=2000)
    [image] = images_of(project)
    folder = project / "out" / image.identifier
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["cell"]["arch"] = "x86_64"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert main(["verify", str(folder)]) == 2
    assert "the image is for ppc64le, and manifest.json says x86_64" in capsys.readouterr().err
