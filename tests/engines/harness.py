"""The command line as a user runs it, programs of others, and copies for tests to change."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from builder.build.engines import Tools
from builder.system.files import link_or_copy
from builder.system.home import Home

PROJECT = Path(__file__).resolve().parents[2]
TOOLS = Home.of_environment().search_path()  # also for tests with a home of their own
ARCHITECTURES = ("x86_64", "ppc64le")
FORMATS = ("oci", "sif", "charliecloud")
LONG = "BUILD_IMAGES_LONG" in os.environ  # as in `make test-long`: campaigns in full
CASE = TypeVar("CASE")
NEEDED = ("mmdebstrap", "buildah", "apptainer", "ch-run", "sqfs2tar", "pigz")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a command line ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def finding(self) -> str:
        """The last line of standard output, where a check says what it found."""
        return ["", *self.stdout.strip().splitlines()][-1]

    @property
    def data(self) -> dict[str, Any]:
        """The JSON of the line before, `data: {...}`; empty where there is none."""
        line = ["", "", *self.stdout.strip().splitlines()][-2]
        data: dict[str, Any] = json.loads(line.removeprefix("data: ")) if line else {}
        return data


def run_program(
    *argv: object,
    env: Mapping[str, str] | None = None,
    inherit: bool = True,
    cwd: Path | None = None,
    user: str | int | None = None,
    stdin: str = "",
    timeout_s: float = 600,
) -> Ended:
    """Run a program; `env` is added to the environment, or to PATH alone without `inherit`."""
    inherited = os.environ if inherit else {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env={**inherited, **(env or {})},
        user=user,
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    return Ended(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


def build_images(
    *words: object, env: Mapping[str, str] | None = None, timeout_s: float = 3000
) -> Ended:
    """Run `build-images` as a user does."""
    program = (sys.executable, "-m", "builder")
    return run_program(*program, *words, env=env, cwd=PROJECT, timeout_s=timeout_s)


def passed(done: Ended) -> Ended:
    """Assert that a command ended well."""
    assert done.status == 0, done.stdout + done.stderr
    return done


def sample(cases: Iterable[CASE], number: int) -> list[CASE]:
    """So many cases of a campaign, spread over all of them; all of them in `make test-long`."""
    listed = list(cases)
    if LONG or number >= len(listed):
        return listed
    return [listed[at * len(listed) // number] for at in range(number)]


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest in an image's folder."""
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


def copy_of(image: Path, target: Path) -> Path:
    """Copy an image's output folder for a test to change; unchanged files are hard links."""
    shutil.copytree(image, target, symlinks=True, copy_function=link_or_copy)
    for file in (target / "manifest.json", *target.glob("evidence/*")):
        text = file.read_bytes()
        file.unlink()
        file.write_bytes(text)
    return target


def missing(names: Sequence[str]) -> list[str]:
    """Those programs that this machine lacks."""
    return [name for name in names if shutil.which(name, path=TOOLS) is None]


def need(*names: str) -> None:
    """Skip where this machine lacks one of these programs."""
    if absent := missing(names):
        pytest.skip(f"missing on this machine: {', '.join(absent)} (make setup-test)")


def tool_of_tests(name: str) -> str:
    """A program that tests alone need: on PATH, or come with a wheel. Skips where it is missing."""
    program = shutil.which(name) or shutil.which(name, path=sysconfig.get_path("scripts"))
    return program or pytest.skip(f"missing on this machine: {name} (make setup-test)")


def processes(pattern: str) -> list[int]:
    """The processes whose command line, its words joined by spaces, a pattern matches."""
    matching = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if re.search(pattern, line.strip()):
                matching.append(int(entry.name))
    return matching


def wait_for(
    condition: Callable[[], object], seconds: float = 120, *, every_s: float = 0.1
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(every_s)


@contextlib.contextmanager
def small_disk(place: Path, size: str = "2m") -> Iterator[Path]:
    """A file system of its own in a new folder; skips where none can be mounted."""
    place.mkdir()
    mounted = run_program("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place)
    if mounted.status:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--recursive", place], check=True)


@contextlib.contextmanager
def folder_of_the_user(tools: Tools) -> Iterator[Path]:
    """A folder that the ordinary user can write to, on the file system of the builder's home."""
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if tools.ordinary_user:
            shutil.chown(folder, tools.ordinary_user)
        yield folder


@contextlib.contextmanager
def home_of_its_own(tools: Tools) -> Iterator[Path]:
    """A home with this machine's tools and nothing else."""
    folder = Path(tempfile.mkdtemp(prefix="build-images-", dir="/var/tmp"))
    folder.chmod(0o755)  # the ordinary user works in it
    (folder / "tools").symlink_to(tools.home.path / "tools")
    try:
        yield folder
    finally:
        for line in Path("/proc/self/mountinfo").read_text().splitlines()[::-1]:
            if (place := line.split()[4]).startswith(f"{folder}/"):
                subprocess.run(["umount", "-l", place], check=False)
        shutil.rmtree(folder, ignore_errors=True)
