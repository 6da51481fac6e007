"""What goes wrong on real machines: a failing step, an interruption, a missing engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import (
    PROJECT,
    build_images,
    manifest_of,
    passed,
    processes,
    sample,
    small_disk,
    wait_for,
)
from small_base import write_tiny

from builder.build.engines import Buildah, Tools
from builder.system.descendants import end_tree
from builder.system.files import mounted_below
from builder.system.home import Home

pytestmark = pytest.mark.engines

IMAGE = "tiny-1.0-small-x86_64"


@pytest.fixture(name="home")
def home_in_the_environment(small_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(small_home))
    return small_home


def test_a_failing_step_is_named_and_the_other_images_go_on(home: Path, small_site: Path) -> None:
    del home  # in the environment
    write_tiny(small_site, '"echo all is well"', name="sound")
    write_tiny(small_site, '"echo Error: oh >&2", "seq 100", "exit 7"')
    done = build_images("--project", small_site, "--all", "--format", "oci")
    assert done.status == 1
    step = "RUN echo Error: oh >&2 && seq 100 && exit 7"
    assert f"{IMAGE}: failed, the build failed at: {step}\n" in done.stderr
    assert "  from recipes/tiny.yaml:6, runtime[0].shell\n  its first error:\n" in done.stderr
    assert "\n  | Error: oh\n  | 1\n  | 2\n  its last 30 lines:\n" in done.stderr
    assert "  | 99\n  | 100\n  log: " in done.stderr  # and nothing of the engine's own
    assert (done.stdout + done.stderr).count("\n  | 100\n") == 1
    assert f"log: {small_site}/out/{IMAGE}/build.log" in done.stderr
    assert (small_site / "out" / IMAGE / "build.log").exists()
    assert not (small_site / "out" / IMAGE / "manifest.json").exists()
    assert manifest_of(small_site / "out/sound-1.0-small-x86_64")["outcome"] == "verified"
    assert "the build failed" in (small_site / "out/report.html").read_text()


def test_a_changed_artifact_is_built_again_once(home: Path, small_site: Path) -> None:
    del home  # in the environment
    write_tiny(small_site, '"echo done"')
    arguments = ("--project", small_site, "--all", "--format", "oci")
    passed(build_images(*arguments))
    folder = small_site / "out" / IMAGE
    before = manifest_of(folder)
    blob = max((folder / "image.oci/blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    again = passed(build_images(*arguments))
    assert f"{IMAGE}: verified" in again.stderr
    assert manifest_of(folder)["inputs"] == before["inputs"]
    assert manifest_of(folder)["tree_digest"] == before["tree_digest"]
    assert f"{IMAGE}: unchanged" in passed(build_images(*arguments)).stderr


@pytest.mark.campaign
@pytest.mark.parametrize("number", sample([signal.SIGINT, signal.SIGTERM], 1))
def test_an_interruption_leaves_nothing_behind_and_a_rerun_finishes(
    tools: Tools, small_site: Path, home: Path, number: signal.Signals
) -> None:
    marker = f"sleep {3600 + int(number)}"
    write_tiny(small_site, f'"test -e /tmp/never || {marker}"')
    # A shell's background jobs, CI among them, ignore SIGINT, and so would what they start.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "builder"]
    with subprocess.Popen(
        [*command, "--project", str(small_site), "--all", "--format=oci"],
        cwd=PROJECT,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            wait_for(lambda: processes(f"^{marker}$"), 300)
            child.send_signal(number)
            _, stderr = child.communicate(timeout=60)
        finally:
            end_tree(child.pid, grace_s=5)
    assert child.returncode == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert not processes(f"^{marker}$")
    assert mounted_below(home) == []
    buildah = Buildah(Tools(processes=tools.processes, home=Home(path=home)))
    listed = tools.processes.capture(buildah.command("containers", "--quiet"))
    assert not listed.stdout.strip()
    assert not (small_site / "out" / IMAGE / "manifest.json").exists()
    write_tiny(small_site, '"echo done"')
    again = build_images("--project", small_site, "--all", "--format=oci")
    assert again.status == 0, again.stderr


def test_without_an_engine_nothing_is_begun(tools: Tools, small_site: Path, tmp_path: Path) -> None:
    write_tiny(small_site, '"echo"')
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mmdebstrap", "apptainer", "ch-run", "sqfs2tar", "pigz", "tar", "sh"):
        (programs / name).symlink_to(tools.program(name))
    env = {"PATH": str(programs), "BUILD_IMAGES_HOME": str(tmp_path / "home")}
    done = build_images("--project", small_site, "--all", env=env)
    if os.path.exists("/usr/sbin/buildah"):  # noqa: PTH110
        pytest.skip("buildah is where administration programs are")
    assert done.status == 4
    assert "buildah" in done.stderr
    assert not (small_site / "out" / IMAGE).exists()


def test_without_room_nothing_is_begun(tools: Tools, small_site: Path, tmp_path: Path) -> None:
    del tools
    write_tiny(small_site, '"echo"')
    with small_disk(tmp_path / "small", size="16m") as small:
        done = build_images("--project", small_site, "--all", "--output", small / "out")
        assert done.status == 4
        assert str(small) in done.stderr
        assert not (small / "out" / IMAGE).exists()
