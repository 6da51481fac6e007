"""What the engine tests share: the command line as a user runs it, and what it left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from builder.build.engines import Tools
from builder.build.workspace import link_or_copy
from builder.system.home import Home

PROJECT = Path(__file__).resolve().parents[2]
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


def build_images(
    *arguments: str | Path, env: dict[str, str] | None = None, timeout_s: float = 3000
) -> Ended:
    """Run `build-images` as a user does."""
    done = subprocess.run(
        [sys.executable, "-m", "builder", *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ended(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


def sample(cases: Iterable[CASE], number: int) -> list[CASE]:
    """So many cases of a campaign, spread over all of them; all of them in `make test-long`."""
    listed = list(cases)
    if LONG or number >= len(listed):
        return listed
    return [listed[at * len(listed) // number] for at in range(number)]


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest in an image's folder."""
    found = json.loads((folder / "manifest.json").read_text())
    assert isinstance(found, dict)
    return found


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
    path = Home.of_environment().search_path()
    return [name for name in names if shutil.which(name, path=path) is None]


def tool_of_tests(name: str) -> str:
    """A program that tests alone need: on PATH, or come with a wheel. Skips where it is missing."""
    found = shutil.which(name) or shutil.which(name, path=sysconfig.get_path("scripts"))
    if not found:
        pytest.skip(f"missing on this machine: {name}")
    return found


@contextlib.contextmanager
def small_disk(place: Path, size: str = "2m") -> Iterator[Path]:
    """A file system of its own in a new folder; skips where none can be mounted."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    made = subprocess.run(words, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def copy_of_project(folder: Path) -> Path:
    """Copy the project's input files into a folder, for a test to change."""
    for name in ("recipes", "base-images", "tests/images"):
        shutil.copytree(PROJECT / name, folder / name)
    shutil.copy(PROJECT / "matrix.yaml", folder)
    return folder


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
