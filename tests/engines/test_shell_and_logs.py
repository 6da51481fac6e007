"""An image that fails: its log is read as it grows, and its stage is entered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import PROJECT, build_images, passed, run_program
from small_base import write_tiny

pytestmark = pytest.mark.engines

IMAGE = "tiny-1.0-small-x86_64"
SLOW = "mkdir /opt/good; for n in 1 2 3; do echo now $n; sleep 1; done"
STEP = "RUN echo oh; test -e /opt/missing"
PLACE = "recipes/tiny.yaml:7, runtime[1].shell"
PROGRAM = (sys.executable, "-m", "builder")


@pytest.fixture(name="site")
def site_with_a_home(small_site: Path, small_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(small_home))
    return small_site


def followed(site: Path) -> tuple[str, str]:
    """Build while another command follows the log; return the log, and what the build printed."""
    log = site / "out" / IMAGE / "build.log"
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier build\n")
    command = [*PROGRAM, "--project", str(site), "--all", "--format=oci"]
    with subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True) as builder:
        assert builder.stderr
        for line in builder.stderr:
            if "building with buildah" in line:
                break
        done = run_program(*PROGRAM, "logs", "-f", log.parent, cwd=PROJECT)
        _, printed = builder.communicate(timeout=60)
    assert builder.returncode == 1
    assert done.stdout == log.read_text()
    return done.stdout, printed


def shell(site: Path, *words: str, stdin: str = "") -> tuple[int, str, str]:
    argv = (*PROGRAM, "shell", "--project", site, IMAGE, *words)
    done = run_program(*argv, cwd=PROJECT, stdin=stdin)
    return done.status, done.stdout, done.stderr


def test_a_build_that_fails_is_followed_and_looked_into(site: Path) -> None:
    failing = STEP.removeprefix("RUN ")
    write_tiny(site, f'"{SLOW}"]}}\n  - shell: {{commands: ["{failing}"')
    log, printed = followed(site)
    assert "earlier" not in log
    assert "now 1\nnow 2\nnow 3\n" in log
    assert f"failed at: {STEP}\n  from {PLACE}\n  its last 1 line:\n  | oh\n" in printed
    status, out, err = shell(site, "--", "sh", "-c", "id -u; ls /opt; exit 3")
    assert (status, out) == (3, "0\ngood\n")
    assert err.startswith(f"runtime, before the step that failed:\n  {STEP}\n  {PLACE}\n")
    assert shell(site, "--stage", "tiny-development", "--", "ls", "/opt")[:2] == (0, "")
    write_tiny(site, '"mkdir /opt/good"')
    passed(build_images("--project", site, "--all", "--format", "oci"))
    asked = "id -u; test -d /opt/good && echo good\nexit 5"
    assert shell(site, stdin=asked)[:2] == (5, "65534\ngood\n")
    assert not (site / "out" / IMAGE / "failed-step.json").exists()
