"""The checks that an image carries are run, whatever its manifest lists."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_releases import images_of, make_images, make_project
from manifest_samples import record
from samples import ROOT, a_file, a_folder, plan_of, tar_bytes
from test_check_outcomes import a_check, a_target

from builder.artifacts.flatten import entries_of_tar
from builder.artifacts.oci import Layout
from builder.artifacts.tree import comparable
from builder.cli import main
from builder.compile.spec.image_scripts import SCRIPTS
from builder.model import FAILED, PASSED, Outcome
from builder.model.errors import BadInput
from builder.verify.finished_images import check_cell
from builder.verify.formats import FormatTree
from builder.verify.proof import emulator_of, seen_arch
from builder.verify.targets import ProofTarget, expected_target, lacking_mpi, with_carried

SHIPPED = "hpc-base-1.0-debian13-openmpi5.0-x86_64"


def tree_of(*scripts: str) -> FormatTree:
    import io  # noqa: PLC0415

    members = [a_file(f"{SCRIPTS[1:]}/{name}", mode=0o755) for name in scripts]
    members.append(a_folder(f"{SCRIPTS[1:]}/90-folder"))  # which is no check
    return FormatTree(entries=comparable(entries_of_tar(io.BytesIO(tar_bytes(*members)))))


def target(*names: str, **more: Any) -> ProofTarget:
    return a_target(*map(a_check, names), **more)


def scripts(found: ProofTarget) -> dict[str, str]:
    return {check.name: check.script for check in found.checks}


def test_an_emptied_list_of_checks_is_the_images_own() -> None:
    names = ("10-architecture", "20-mpi", "30-gpu-blas", "40-gpus")
    known = with_carried(target(), [tree_of(*names)])
    assert [(check.name, check.script, check.needs, check.timeout_s) for check in known.checks] == [
        ("architecture", f"{SCRIPTS}/10-architecture", (), 900),
        ("mpi", f"{SCRIPTS}/20-mpi", (), 900),
        ("gpu-blas", f"{SCRIPTS}/30-gpu-blas", ("gpu",), 900),
        ("gpus", f"{SCRIPTS}/40-gpus", (), 900),
    ]


def test_a_script_is_the_one_in_the_image() -> None:
    """That of `a_check` is another path, at which anything might be."""
    found = with_carried(target("mpi", "ucx"), [tree_of("10-mpi")])
    assert scripts(found) == {"mpi": f"{SCRIPTS}/10-mpi", "ucx": f"{SCRIPTS}/ucx"}
    assert with_carried(target("mpi"), []) == target("mpi")


def test_an_mpi_without_its_check_fails() -> None:
    [outcome] = lacking_mpi(target("architecture", mpi="openmpi5.0"))
    assert (outcome.check, outcome.outcome) == ("mpi", FAILED)
    assert outcome.reason == "the image is for openmpi5.0, but has no check mpi"
    assert lacking_mpi(target("mpi", mpi="openmpi5.0")) == lacking_mpi(target()) == ()


def test_emulated_is_what_was_seen() -> None:
    seen = Outcome(check="architecture", outcome=PASSED, reason="", data={"uname": "ppc64le"})
    assert seen_arch([seen], "x86_64") == "ppc64le"
    assert seen_arch([], "x86_64") == "x86_64"
    run: Any = SimpleNamespace(host=SimpleNamespace(arch="x86_64"), versions={"qemu": "9"})
    assert emulator_of(run, "x86_64", "x86_64") == ""
    assert (
        emulator_of(run, "ppc64le", "x86_64") == emulator_of(run, "x86_64", "ppc64le") == "qemu 9"
    )


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
    assert (
        "the image's architecture is ppc64le, and manifest.json says x86_64"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("image", "cell", "fault"),
    [
        ("x-1.0", {}, ""),
        ("x-1.0", {"arch": "ppc64le"}, "architecture is x86_64, and manifest.json says ppc64le"),
        ("x-1.0", {"mpi": "none"}, "MPI is openmpi, and manifest.json says none"),
        ("x-1.0", {"mpi": "mpich4.2"}, "MPI is openmpi, and manifest.json says mpich"),
        ("x-2.0", {}, "identifier is x-1.0, and manifest.json says x-2.0"),
    ],
)
def test_a_manifest_of_another_image_than_its_own_is_refused(
    image: str, cell: dict[str, str], fault: str
) -> None:
    labels = {"build-images.identifier": "x-1.0", "build-images.mpi": "openmpi 5.0.7"}
    config = {"architecture": "amd64", "config": {"Labels": labels}}
    layout = Layout(path=Path(), digest="", config=config, layers=())
    manifest = record({"image": image, "cell": {"arch": "x86_64", "mpi": "openmpi5.0", **cell}})
    text = f"^{image}: the image's {fault}"
    with pytest.raises(BadInput, match=text) if fault else nullcontext():
        check_cell(manifest, layout)


def test_the_project_says_which_checks_and_scripts_an_image_has() -> None:
    """As long as it would build the very same image: then no manifest can take one away."""
    [image] = [one for one in plan_of("hpc-base").images if one.identifier == SHIPPED]
    cell = {name: getattr(image.cell, name) for name in image.cell.__slots__}
    manifest = {"image": SHIPPED, "content_key": image.content_key, "cell": cell}
    found = expected_target(ROOT, record(manifest))
    assert found is not None
    assert [check.name for check in found.checks] == [check.name for check in image.checks]
    assert found.mpi == "openmpi5.0"
    assert found.harness.keys() >= {"run-checks", "src/quiet.sh"}
    assert expected_target(ROOT, record({**manifest, "content_key": "another"})) is None
    assert expected_target(ROOT / "docs", record(manifest)) is None
    assert expected_target(ROOT, record({**manifest, "cell": {**cell, "base": "none"}})) is None
