"""What a user does about an image that fails: read the log as it grows, and look into the stage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import PROJECT, build_images, passed, run_program
from small_base import write_tiny

pytestmark = pytest.mark.engines

IMAGE = "tiny-1.0-small-x86_64"
SLOW = "for n in 1 2 3; do echo now $n; sleep 1; done"
PROGRAM = (sys.executable, "-m", "builder")


@pytest.fixture(name="site")
def site_with_a_home(small_site: Path, small_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(small_home))
    return small_site


def shell(site: Path, *words: str, stdin: str = "") -> tuple[int, str, str]:
    argv = (*PROGRAM, "shell", "--project", site, IMAGE, *words)
    done = run_program(*argv, cwd=PROJECT, stdin=stdin)
    return done.status, done.stdout, done.stderr


def test_a_shell_in_the_stage_that_failed_and_in_the_image(site: Path) -> None:
    write_tiny(site, '"mkdir /opt/good"]}\n  - shell: {commands: ["test -e /opt/missing"')
    assert build_images("--project", site, "--all", "--format", "oci").status == 1
    status, out, err = shell(site, "--", "sh", "-c", "id -u; ls /opt; exit 3")
    assert (status, out) == (3, "0\ngood\n")
    step = "RUN test -e /opt/missing\n  recipes/tiny.yaml:7, runtime[1].shell\n"
    assert err.startswith(f"runtime, before the step that failed:\n  {step}")
    assert shell(site, "--stage", "tiny-development", "--", "ls", "/opt")[:2] == (0, "")
    write_tiny(site, '"mkdir /opt/good"')
    passed(build_images("--project", site, "--all", "--format", "oci"))
    asked = "id -u; test -d /opt/good && echo good\nexit 5"
    assert shell(site, stdin=asked)[:2] == (5, "65534\ngood\n")
    left = [one for one in (site / "out" / IMAGE).iterdir() if one.name.startswith("failed")]
    assert left == []


def test_the_log_of_a_running_build_is_followed(site: Path) -> None:
    write_tiny(site, f'"{SLOW}"')
    log = site / "out" / IMAGE / "build.log"
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier build\n")
    command = [*PROGRAM, "--project", str(site), "--all", "--format=oci", "--no-verify"]
    with subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True) as builder:
        assert builder.stderr
        for line in builder.stderr:
            if "building with buildah" in line:
                break
        done = run_program(*PROGRAM, "logs", "-f", log.parent, cwd=PROJECT)
        builder.communicate(timeout=60)
    assert builder.returncode == 0
    assert "now 1\nnow 2\nnow 3\n" in done.stdout
    assert done.stdout == log.read_text()
    assert "earlier" not in done.stdout
