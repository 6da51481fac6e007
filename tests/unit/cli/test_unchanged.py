"""`plan` and `spec` of a project in which nothing changed: nothing is loaded, nothing is missed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from samples import ROOT

from builder.cli import commands, main
from builder.cli.unchanged import MOST

GOOD = ROOT / "tests/data/good"


@pytest.fixture(name="project")
def small_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BUILD_IMAGES_SITE", raising=False)
    shutil.copytree(GOOD, tmp_path / "project")
    shutil.copy(ROOT / "tests/images/run-checks", tmp_path / "project/tests/images/run-checks")
    return tmp_path / "project"


@pytest.fixture(name="loads")
def count_loads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with each time that a project is loaded and planned."""
    found: list[object] = []
    load_plan = commands.load_plan

    def counted(*given: object, **more: object) -> object:
        found.append(given)
        return load_plan(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(commands, "load_plan", counted)
    return found


def run(command: str, project: Path, *more: str) -> None:
    assert main([command, f"--project={project}", "--all", *more]) == 0


def texts(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_unchanged_specs_are_not_made_again(
    project: Path, loads: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    run("spec", project)
    first, before = capsys.readouterr().out, times(project / "out")
    run("spec", project)
    assert capsys.readouterr().out == first != ""
    assert len(loads) == 1
    assert times(project / "out") == before


def alter(folder: Path) -> None:
    (folder / "Dockerfile").write_text("FROM scratch\n")


def alter_keeping_size_and_time(folder: Path) -> None:
    file = folder / "Singularity.def"
    before = file.stat()
    file.write_text(file.read_text()[::-1])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def take_away(folder: Path) -> None:
    (folder / "files/run-checks").unlink()


def take_all_away(folder: Path) -> None:
    shutil.rmtree(folder)


def add(folder: Path) -> None:
    (folder / "files/checks/99-other").write_text("#!/bin/sh\n")


def change_mode(folder: Path) -> None:
    (folder / "files/run-checks").chmod(0o600)


@pytest.mark.parametrize(
    "spoil",
    [alter, alter_keeping_size_and_time, take_away, take_all_away, add, change_mode],
)
def test_a_spoilt_spec_is_written_anew(
    project: Path, loads: list[object], spoil: Callable[[Path], None]
) -> None:
    run("spec", project)
    expected = texts(project / "out")
    folder = sorted((project / "out").iterdir())[0]
    spoil(folder)
    run("spec", project)
    assert texts(project / "out") == expected
    assert (folder / "files/run-checks").stat().st_mode & 0o777 == 0o755
    assert len(loads) == 2
    run("spec", project)
    assert len(loads) == 2


@pytest.mark.parametrize("name", ["recipes", "base-images", "tests/images", "matrix.yaml"])
@pytest.mark.parametrize("command", ["spec", "plan"])
def test_a_changed_input_is_seen(
    project: Path, loads: list[object], command: str, name: str
) -> None:
    run(command, project)
    path = project / name
    file = path if path.is_file() else next(p for p in sorted(path.iterdir()) if p.is_file())
    file.write_text(f"{file.read_text()}\n# changed\n")
    run(command, project)
    assert len(loads) == 2


def test_a_new_input_and_another_selection_are_seen(
    project: Path, loads: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("plan", project)
    run("plan", project, "--arch=x86_64")
    assert len(loads) == 2
    (project / "site.yaml").write_text("sources: []\n")
    run("plan", project)
    assert len(loads) == 3
    monkeypatch.setenv("BUILD_IMAGES_MIRROR", "https://mirror.example/")
    run("plan", project)
    assert len(loads) == 4


def test_an_unchanged_plan_tells_the_states_of_now(
    project: Path, loads: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    run("plan", project)
    first = capsys.readouterr().out
    run("plan", project)
    assert capsys.readouterr().out == first
    assert len(loads) == 1
    identifier = first.split()[1]
    folder = project / "out" / identifier
    folder.mkdir(parents=True)
    manifest = {
        "schema": "build-images/manifest/v1",
        **dict.fromkeys(["image", "outcome"], ""),
        "cell": {},
        "checks": {},
        "in_image_checks": [],
        "artifacts": {"oci": {"format": "oci", "path": "x", "digest": "", "size": 0}},
        "content_key": "of other inputs",
        "engine": "buildah",
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    run("plan", project)
    assert f"{identifier} " in capsys.readouterr().out.split("its inputs changed")[0]
    assert len(loads) == 1


def test_a_home_that_cannot_be_written_to_costs_time_only(
    project: Path, loads: list[object], tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("a file\n")
    run("plan", project)
    run("plan", project)
    assert len(loads) == 2


def test_a_broken_result_counts_as_none(project: Path, tmp_path: Path, loads: list[object]) -> None:
    run("plan", project)
    for file in (tmp_path / "home/unchanged").iterdir():
        file.write_text("{")
    run("plan", project)
    assert len(loads) == 2


@pytest.mark.parametrize(
    "kept",
    [
        *("[]", "3", '"x"', "{}", '{"images": [], "left_out": "x"}'),
        *('{"images": 3, "left_out": 0}', '{"images": [3], "left_out": 0}'),
        *('{"images": [["x"]], "left_out": 0}', '{"images": [[1, 2]], "left_out": 0}'),
        *('{"folders": 3, "files": {}}', '{"folders": [3], "files": {}}'),
        *('{"folders": [], "files": []}', '{"folders": []}'),
    ],
)
@pytest.mark.parametrize("command", ["spec", "plan"])
def test_a_result_of_another_shape_counts_as_none(
    project: Path, tmp_path: Path, loads: list[object], command: str, kept: str
) -> None:
    run(command, project)
    for file in (tmp_path / "home/unchanged").iterdir():
        file.write_text(kept)
    run(command, project)
    assert len(loads) == 2


def test_old_results_go(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "home/unchanged"
    folder.mkdir(parents=True)
    for number in range(2 * MOST):
        (folder / f"{number}.json").write_text("{}")
    run("plan", project)
    assert len(list(folder.iterdir())) == MOST


@pytest.mark.parametrize("command", [["plan"], ["plan", "--json"], ["explain"]])
def test_plans_are_made_without_hpccm(project: Path, command: list[str]) -> None:
    """Importing it takes longer than all the rest of a first plan."""
    program = (
        "import sys; from builder.cli import main; code = main(sys.argv[1:]);"
        " sys.exit(code or ('hpccm' in sys.modules and 'hpccm is imported'))"
    )
    call = [sys.executable, "-c", program, *command, f"--project={project}", "--all"]
    done = subprocess.run(call, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
