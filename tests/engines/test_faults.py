"""What goes wrong on real machines: a failing step, an interruption, a missing engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import PROJECT, build_images, manifest_of, sample
from small_base import MATRIX

from builder.build.engines import Buildah, Tools
from builder.system.descendants import end_tree
from builder.system.files import mounted_below
from builder.system.home import Home

pytestmark = pytest.mark.engines

IMAGE = "tiny-1.0-small-x86_64"
TINY = """\
recipe: tiny
version: "1.0"
about: a few commands on the base
development: []
runtime:
  - shell: {{commands: [{commands}]}}
"""


@pytest.fixture(name="site")
def site_with_a_small_base(small_site: Path) -> Path:
    return small_site


@pytest.fixture(name="home")
def home_with_the_small_base(small_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(small_home))
    return small_home


def write_tiny(site: Path, commands: str, *, name: str = "tiny", base: str = "small") -> None:
    """Make the project one of tiny recipes, without MPI, for x86_64."""
    for recipe in (site / "recipes").glob("*.yaml"):
        if "about: a few commands" not in recipe.read_text():  # not of an earlier call
            recipe.unlink()
    text = TINY.format(commands=commands).replace("recipe: tiny", f"recipe: {name}")
    (site / f"recipes/{name}.yaml").write_text(text)
    (site / "matrix.yaml").write_text(MATRIX.replace("small", base))


def test_a_failing_step_is_named_and_the_other_images_go_on(home: Path, site: Path) -> None:
    del home  # in the environment
    write_tiny(site, '"echo all is well"', name="sound")
    write_tiny(site, '"seq 100", "exit 7"')
    done = build_images("--project", site, "--all", "--format", "oci")
    assert done.status == 1
    assert f"{IMAGE}: failed, the build failed at: RUN seq 100 && exit 7" in done.stderr
    assert "its last 30 lines" in done.stderr
    assert f"log: {site}/out/{IMAGE}/build.log" in done.stderr
    assert (site / "out" / IMAGE / "build.log").exists()
    assert not (site / "out" / IMAGE / "manifest.json").exists()
    assert manifest_of(site / "out/sound-1.0-small-x86_64")["outcome"] == "verified"
    assert "the build failed" in (site / "out/report.html").read_text()


@pytest.mark.campaign
@pytest.mark.parametrize("number", sample([signal.SIGINT, signal.SIGTERM], 1))
def test_an_interruption_leaves_nothing_behind_and_a_rerun_finishes(
    tools: Tools, site: Path, home: Path, number: signal.Signals
) -> None:
    marker = f"sleep {3600 + int(number)}"
    write_tiny(site, f'"test -e /tmp/never || {marker}"')
    # A shell's background jobs, CI among them, ignore SIGINT, and so would what they start.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "builder"]
    with subprocess.Popen(
        [*command, "--project", str(site), "--all", "--format=oci"],
        cwd=PROJECT,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            wait_for(lambda: running(marker), 300)
            child.send_signal(number)
            _, stderr = child.communicate(timeout=60)
        finally:
            end_tree(child.pid, grace_s=5)
    assert child.returncode == 130
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert not running(marker)
    assert mounted_below(home) == []
    buildah = Buildah(Tools(processes=tools.processes, home=Home(path=home)))
    listed = tools.processes.capture(buildah.command("containers", "--quiet"))
    assert not listed.stdout.strip()
    assert not (site / "out" / IMAGE / "manifest.json").exists()
    write_tiny(site, '"echo done"')
    assert build_images("--project", site, "--all", "--format=oci").status == 0


def running(marker: str) -> bool:
    """Whether a process with these words in its command line is there."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if words == marker:
            return True
    return False


def wait_for(condition: object, seconds: float) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.2)


def test_without_an_engine_nothing_is_begun(tools: Tools, site: Path, tmp_path: Path) -> None:
    write_tiny(site, '"echo"')
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mmdebstrap", "apptainer", "ch-run", "sqfs2tar", "pigz", "tar", "sh"):
        (programs / name).symlink_to(tools.program(name))
    home = tmp_path / "home"
    done = build_images(
        "--project",
        site,
        "--all",
        env={"PATH": str(programs), "BUILD_IMAGES_HOME": str(home)},
    )
    if os.path.exists("/usr/sbin/buildah"):  # noqa: PTH110
        pytest.skip("buildah is where administration programs are")
    assert done.status == 4
    assert "buildah" in done.stderr
    assert not (site / "out" / IMAGE).exists()


def test_without_room_nothing_is_begun(tools: Tools, site: Path, tmp_path: Path) -> None:
    del tools
    write_tiny(site, '"echo"')
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(small)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("this user cannot mount a small file system")
    try:
        done = build_images("--project", site, "--all", "--output", small / "out")
        assert done.status == 4
        assert str(small) in done.stderr
        assert not (small / "out" / IMAGE).exists()
    finally:
        subprocess.run(["umount", str(small)], check=True)
