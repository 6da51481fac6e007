"""`verify --launcher`: what it asks for, what it writes, and how it ends."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from manifest_samples import CELL

from builder.cli import main
from builder.cli.schema import schema_of
from builder.model import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.model.measurement import HostFacts
from builder.verify import launched as launching
from builder.verify.evidence import StartedBy
from builder.verify.launched import Ranks

SIF = b"a sif"
Asked = list[Ranks]
Answer = Callable[[Ranks], str]


@pytest.fixture(name="folder")
def image_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder into which a site fetched the SIF of an image, and nothing else."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("builder.verify.preparation.versions_of", lambda *_: {"apptainer": "1.4.5"})
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "image.sif").write_bytes(SIF)
    write(folder)
    return folder


def write(folder: Path, **changes: Any) -> None:
    digest = f"sha256:{hashlib.sha256(SIF).hexdigest()}"
    manifest = {
        "schema": "build-images/manifest/v1",
        "image": "core-1.0-debian12-openmpi4.1-x86_64",
        "cell": {**CELL, "arch": platform.machine(), "mpi": "openmpi4.1"},
        "content_key": "0",
        "engine": "buildah",
        "outcome": "verified",
        "emulated": False,
        "checks": {"sif": []},
        "evidence": ["evidence/sif.json"],
        "formats_equal": True,
        "in_image_checks": [{"name": "mpi", "script": "/s", "needs": [], "timeout_s": 180}],
        "artifacts": {
            name: {
                "format": name,
                "path": path,
                "digest": digest,
                "size": len(SIF),
                "tree_digest": f"sha256:{'7e' * 32}",
            }
            for name, path in (("oci", "image.oci"), ("sif", "image.sif"))
        },
        **changes,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def manifest_of(folder: Path) -> Any:
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture(name="asked")
def asked_for(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The ranks that were asked for, all of which pass."""
    asked: Asked = []
    answer_with(monkeypatch, asked, lambda _: PASSED)
    return asked


def answer_with(
    monkeypatch: pytest.MonkeyPatch, asked: Asked, answer: Answer, *there: HostFacts
) -> None:
    def verify(ranks: Ranks, **_: Any) -> tuple[Outcome, StartedBy]:
        asked.append(ranks)
        assert ranks.artifact.read_bytes() == SIF
        start = ranks.start
        started_by = StartedBy(
            name=start.launcher,
            product="Slurm",
            version="22.05.8",
            command=f"{start.launcher} apptainer",
            ranks=start.ranks,
            nodes=start.nodes,
            machines={f"n{number}": machine for number, machine in enumerate(there)},
        )
        return Outcome(check=ranks.start.check, outcome=answer(ranks), reason="because"), started_by

    monkeypatch.setattr(launching, "verify_ranks", verify)


def verify(folder: Path, *words: str) -> int:
    return main(["verify", str(folder), "--runner", "apptainer", *words])


def test_each_launcher_and_each_depth_has_an_outcome_and_evidence(
    folder: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(folder, "--launcher=mpirun", "--launcher=srun", "--bind-mpi=auto") == 0
    names = ["mpi-hybrid-mpirun", "mpi-bind-mpirun", "mpi-hybrid-srun", "mpi-bind-srun"]
    assert [ranks.start.check for ranks in asked] == names
    manifest = manifest_of(folder)
    assert [one["check"] for one in manifest["launched"]["sif"]] == names
    assert manifest["checks"] == {"sif": []}
    proofs = [f"evidence/sif-{name}.json" for name in names]
    assert manifest["evidence"] == sorted(["evidence/sif.json", *proofs])
    out = capsys.readouterr().out
    assert out.startswith("core-1.0-debian12-openmpi4.1-x86_64: 4 ranks\n  sif ")
    assert "mpi-bind-srun    passed   because" in out


def test_the_evidence_says_what_started_the_ranks(folder: Path, asked: Asked) -> None:
    assert verify(folder, "--launcher=srun", "--nodes=2") == 0
    del asked
    statement = json.loads((folder / "evidence/sif-mpi-hybrid-srun.json").read_text())
    jsonschema.Draft7Validator(schema_of("evidence")).validate(statement)
    assert subjects(statement) == ["oci", "sif", "tree"]
    assert statement["predicate"]["passedTests"] == ["mpi-hybrid-srun"]
    run, check = statement["predicate"]["configuration"]
    about = run["annotations"]
    assert (about["format"], about["runner"]) == ("sif", {"name": "apptainer", "version": "1.4.5"})
    assert about["tools"] == {"apptainer": "1.4.5"}
    assert about["gpu"] == {"handed_over": False, "reason": "its program needs none"}
    assert about["launcher"] == {
        "name": "srun",
        "product": "Slurm",
        "version": "22.05.8",
        "command": "srun apptainer",
        "ranks": 4,
        "nodes": 2,
        "machines": [],
    }
    assert check["uri"].endswith("#mpi-hybrid-srun")
    junit = ET.parse(folder / "evidence/sif-mpi-hybrid-srun.xml")
    assert [one.get("name") for one in junit.iter("testcase")] == ["mpi-hybrid-srun"]
    properties = {one.get("name"): one.get("value") for one in junit.iter("property")}
    assert properties["launcher"] == "srun of Slurm 22.05.8"


def test_the_evidence_names_the_program_that_ran(
    folder: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    del asked
    looked: list[str] = []

    def digest_of(artifact: Artifact, **_: Any) -> str:
        assert artifact.path.read_bytes() == SIF
        looked.append(artifact.format)
        return "c3" * 32

    def descriptor() -> Any:
        text = (folder / "evidence/sif-mpi-hybrid-srun.json").read_text()
        return json.loads(text)["predicate"]["configuration"][1]

    monkeypatch.setattr(launching, "program_digest", digest_of)
    assert verify(folder, "--launcher=srun", "--bind-mpi=auto") == 0
    assert looked == ["sif"]  # once for all outcomes
    assert descriptor()["digest"] == {"sha256": "c3" * 32}


def test_what_could_not_be_tried_leaves_everything_as_it_was(
    folder: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No Slurm runs, say: that is nothing of the image's, and no evidence of anything."""
    assert verify(folder, "--launcher=srun") == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    answer_with(monkeypatch, asked, lambda _: SKIPPED)
    assert verify(folder, "--launcher=srun", "--launcher=mpirun") == 4
    assert "mpi-hybrid-srun  skipped  because" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arch", "there", "emulator"),
    [
        ("x86_64", ["x86_64", "x86_64"], ""),
        ("x86_64", ["x86_64", "ppc64le"], "qemu"),
        ("ppc64le", ["ppc64le", "ppc64le"], ""),
        ("ppc64le", ["ppc64le", "x86_64"], "qemu"),
    ],
)
def test_evidence_is_of_the_machines_that_ran_the_ranks(
    arch: str, there: list[str], emulator: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that started them may be of another kind: a login node."""
    nodes = [
        HostFacts(arch=one, kernel="4.18", cpu="POWER9", cores=160, os="RHEL 8", driver="535.1")
        for one in there
    ]
    answer_with(monkeypatch, [], lambda _: PASSED, *nodes)
    monkeypatch.setattr("builder.verify.preparation.versions_of", lambda *_: {"qemu": "9.2"})
    write(folder, cell={**manifest_of(folder)["cell"], "arch": arch})
    assert verify(folder, "--launcher=srun") == 0
    statement = json.loads((folder / "evidence/sif-mpi-hybrid-srun.json").read_text())
    jsonschema.Draft7Validator(schema_of("evidence")).validate(statement)
    about = statement["predicate"]["configuration"][0]["annotations"]
    assert [one["name"] for one in about["launcher"]["machines"]] == ["n0", "n1"]
    assert about["host"]["cpu"] == "POWER9"
    assert about["emulated"] is bool(emulator)
    version = " 9.2" if arch != platform.machine() else ""  # of a node, it is not known
    assert about["emulator"] == (emulator and emulator + version)
    assert about["host"]["arch"] == (there[1] if emulator else there[0])


def subjects(statement: dict[str, Any]) -> list[str]:
    return [one["name"].rpartition("/")[2] for one in statement["subject"]]


@pytest.mark.parametrize("equal", [False, None])
def test_evidence_is_of_the_artifact_that_ran_unless_all_are_equal(
    equal: bool | None, folder: Path, asked: Asked
) -> None:
    del asked
    write(folder, formats_equal=equal)
    assert verify(folder, "--launcher=srun") == 0
    statement = json.loads((folder / "evidence/sif-mpi-hybrid-srun.json").read_text())
    assert subjects(statement) == ["sif"]


def test_what_was_asked_for_reaches_the_ranks(folder: Path, asked: Asked) -> None:
    words = (
        "--ranks=64",
        "--nodes=2",
        "--timeout=9",
        "--launcher-option=-p",
        "--launcher-option=x",
    )
    assert verify(folder, "--launcher=srun", *words) == 0
    [found] = asked
    assert (found.start.ranks, found.start.nodes, found.start.timeout_s) == (64, 2, 9)
    assert found.start.options == ("-p", "x")
    assert found.mpi is not None
    assert (found.mpi.library, found.mpi.soname) == ("Open MPI v4.1", "libmpi.so.40")
    assert found.mpi.pmix
    assert verify(folder, "--launcher=srun") == 0
    assert (asked[1].start.ranks, asked[1].start.timeout_s) == (4, 180)


@pytest.mark.parametrize(
    ("changes", "has_mpi", "has_program"),
    [
        ({"cell": {**CELL, "mpi": "none"}}, False, True),
        ({"cell": {**CELL, "mpi": "lam7.1"}}, False, True),
        ({"cell": {**CELL, "mpi": "openmpi99.9"}}, True, True),  # a series that is not known
        ({"in_image_checks": []}, True, False),
    ],
)
def test_images_without_an_mpi_or_its_check(
    changes: dict[str, Any], has_mpi: bool, has_program: bool, folder: Path, asked: Asked
) -> None:
    write(folder, **changes)
    assert verify(folder, "--launcher=mpirun") == 0
    assert (asked[0].mpi is not None, asked[0].has_program) == (has_mpi, has_program)
    assert asked[0].start.timeout_s == (180 if has_program else 0)
    if found := asked[0].mpi:
        assert (found.soname, bool(found.pmix)) == ("libmpi.so.40", "99" not in found.version)


def test_a_later_outcome_takes_the_place_of_an_earlier_one(
    folder: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify(folder, "--launcher=mpirun", "--launcher=srun") == 0
    answer_with(monkeypatch, asked, lambda _: FAILED)
    assert verify(folder, "--launcher=srun") == 1
    found = [(one["check"], one["outcome"]) for one in manifest_of(folder)["launched"]["sif"]]
    assert found == [("mpi-hybrid-mpirun", PASSED), ("mpi-hybrid-srun", FAILED)]
    assert manifest_of(folder)["outcome"] == "verified"


def test_an_emulated_launch_of_an_image_that_was_checked_natively(
    folder: Path,
    asked: Asked,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foreign = "s390x" if platform.machine() != "s390x" else "x86_64"
    write(folder, cell={**CELL, "arch": foreign, "mpi": "openmpi4.1"})
    assert verify(folder, "--launcher=mpirun") == 0
    assert ": 4 ranks, emulated\n" in capsys.readouterr().out
    found = manifest_of(folder)
    assert (found["emulated"], found["emulated_runs"]) == (True, ["sif-mpi-hybrid-mpirun"])
    answer_with(monkeypatch, asked, lambda _: SKIPPED)
    assert verify(folder, "--launcher=mpirun") == 4
    assert manifest_of(folder)["emulated"] is True, "as it was"


def test_a_native_launch_of_an_image_that_was_checked_emulated(
    folder: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    del asked
    write(folder, emulated=True, emulated_runs=["sif"])
    assert verify(folder, "--launcher=srun") == 0
    assert ": 4 ranks\n" in capsys.readouterr().out
    assert manifest_of(folder)["emulated_runs"] == ["sif"]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ({"mpirun": PASSED, "srun": PASSED}, 0),
        ({"mpirun": PASSED, "srun": SKIPPED}, 4),
        ({"mpirun": SKIPPED, "srun": SKIPPED}, 4),
        ({"mpirun": FAILED, "srun": SKIPPED}, 1),
    ],
)
def test_the_exit_code(
    outcomes: dict[str, str], code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, [], lambda ranks: outcomes[ranks.start.launcher])
    assert verify(folder, "--launcher=mpirun", "--launcher=srun") == code


def test_an_artifact_that_is_not_there_or_not_the_manifests(
    folder: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "image.tar.gz").touch()  # which the manifest does not name
    assert verify(folder, "--launcher=mpirun", "--runner=charliecloud") == 2
    assert "missing: image.tar.gz" in capsys.readouterr().err
    assert main(["verify", str(folder), "--launcher=mpirun"]) == 0
    assert [one.kind.format for one in asked] == ["sif"]
    (folder / "image.sif").write_bytes(b"another")
    assert verify(folder, "--launcher=mpirun") == 2
    assert "image.sif: its digest is sha256:" in capsys.readouterr().err
    (folder / "image.sif").unlink()
    assert main(["verify", str(folder), "--launcher=mpirun"]) == 2
    assert "missing: image.sif, image.tar.gz" in capsys.readouterr().err
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks=4", "--bind-mpi=auto"], "--ranks, --bind-mpi: only with --launcher"),
        (["--timeout=9"], "--timeout: only with --launcher mpirun or srun"),
        (["--launcher=ssh"], "invalid choice: 'ssh'"),
        (
            ["--launcher=mpirun", "--runner=docker"],
            "--runner docker: launchers start containers of apptainer and charliecloud",
        ),
        (["--launcher=mpirun", "--ranks=0"], "0 is not a positive number"),
        (
            ["--launcher=srun", "--ranks=2", "--nodes=3"],
            "--nodes 3: 2 ranks cannot use all of them; --ranks 3 can",
        ),
        (
            ["--launcher=mpirun", "--nodes=5"],
            "--nodes 5: 4 ranks cannot use all of them; --ranks 5 can",
        ),
        (["--launcher=mpirun", "--ranks=1", "--nodes=2"], "--nodes 2: 1 rank cannot use all"),
    ],
)
def test_bad_usage(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(folder), *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
