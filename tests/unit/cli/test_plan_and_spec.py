"""`plan` and `spec`, run again and again while recipes are written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from manifest_samples import document
from samples import ROOT

from builder.cli import main

GOOD = ROOT / "tests/data/good"


@pytest.fixture(name="project")
def small_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BUILD_IMAGES_SITE", raising=False)
    shutil.copytree(GOOD, tmp_path / "project")
    shutil.copy(ROOT / "tests/images/run-checks", tmp_path / "project/tests/images/run-checks")
    return tmp_path / "project"


def run(command: str, project: Path, *more: str) -> None:
    assert main([command, f"--project={project}", "--all", *more]) == 0


def texts(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def alter_keeping_size_and_time(folder: Path) -> None:
    file = folder / "Singularity.def"
    before = file.stat()
    file.write_text(file.read_text()[::-1])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def linked_elsewhere(folder: Path, name: str) -> None:
    elsewhere = folder.parents[1] / "elsewhere"
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)


def in_its_place(file: Path) -> None:
    file.unlink()
    file.mkdir()


SPOILT: dict[str, Callable[[Path], object]] = {
    "altered": lambda folder: (folder / "Dockerfile").write_text("FROM scratch\n"),
    "altered, of the same size and time": alter_keeping_size_and_time,
    "a file less": lambda folder: (folder / "files/run-checks").unlink(),
    "gone": shutil.rmtree,
    "a file more": lambda folder: (folder / "files/checks/99-other").write_text("#!/bin/sh\n"),
    "a folder more": lambda folder: (folder / "files/checks/other").mkdir(),
    "a folder that is a link": lambda folder: linked_elsewhere(folder, "files/checks"),
    "a file that is a link": lambda folder: linked_elsewhere(folder, "files/run-checks"),
    "files that are a link": lambda folder: linked_elsewhere(folder, "files"),
    "a folder in the place of a file": lambda folder: in_its_place(folder / "files/run-checks"),
    "another mode": lambda folder: (folder / "files/run-checks").chmod(0o600),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_spec_is_written_anew(project: Path, name: str) -> None:
    run("spec", project, "--no-lint")
    expected = texts(project / "out")
    folder = sorted((project / "out").iterdir())[0]
    SPOILT[name](folder)
    run("spec", project, "--no-lint")
    assert texts(project / "out") == expected
    assert not [path for path in (project / "out").rglob("*") if path.is_symlink()]
    assert not (folder / "files/checks/other").exists()
    assert (folder / "files/run-checks").stat().st_mode & 0o777 == 0o755


def test_an_unchanged_plan_tells_the_states_of_now(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("plan", project)
    first = capsys.readouterr().out
    run("plan", project)
    assert capsys.readouterr().out == first
    identifier = first.split()[1]
    folder = project / "out" / identifier
    folder.mkdir(parents=True)
    manifest = document({"image": identifier, "content_key": "of other inputs"})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    run("plan", project)
    assert f"{identifier} " in capsys.readouterr().out.split("its inputs changed")[0]


PLANS = """
import sys
from builder.cli import main

for command, modules in (
    (["plan"], ("hpccm", "requests")),
    (["plan", "--json"], ("hpccm", "requests")),
    (["explain"], ("hpccm",)),
):
    assert main([*command, *sys.argv[1:]]) == 0
    imported = sys.modules.keys() & {*modules}
    assert not imported, f"{command}: {imported}"
"""


def test_plans_are_made_without_hpccm_and_plans_without_requests(project: Path) -> None:
    """Importing either takes as long as all the rest of a plan."""
    call = [sys.executable, "-c", PLANS, f"--project={project}", "--all"]
    done = subprocess.run(call, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
