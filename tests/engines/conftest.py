"""What the engine tests share: the command line, and images made once for all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builder.engines import Tools
from builder.home import Home
from builder.process import Processes

PROJECT = Path(__file__).resolve().parents[2]
ARCHITECTURES = ("x86_64", "ppc64le")
FORMATS = ("oci", "sif", "charliecloud")
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


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest in an image's folder."""
    found = json.loads((folder / "manifest.json").read_text())
    assert isinstance(found, dict)
    return found


def missing(names: Sequence[str]) -> list[str]:
    """Those programs that this machine lacks."""
    path = Home.of_environment().search_path()
    return [name for name in names if shutil.which(name, path=path) is None]


@pytest.fixture(scope="session")
def tools() -> Tools:
    """This machine's programs; skips, with their names, where engines are missing."""
    if absent := missing(NEEDED):
        pytest.skip(f"missing on this machine: {', '.join(absent)}")
    return Tools(processes=Processes(), home=Home.of_environment())


@pytest.fixture(scope="session")
def out(tools: Tools) -> Path:
    """The output folder of all engine tests; what is in it and unchanged is not built again."""
    del tools
    return PROJECT / "out" / "tests"


@pytest.fixture(scope="session")
def main_job(out: Path) -> Ended:
    """The main job on the default selection: `hpc-base` for both architectures."""
    return build_images("--output", out)


@pytest.fixture(scope="session")
def hpc_base(main_job: Ended, out: Path) -> dict[str, Path]:
    """The folders of the default images, by architecture."""
    assert main_job.status == 0, main_job.stderr
    return {arch: out / f"hpc-base-1.0-debian13-openmpi5.0-{arch}" for arch in ARCHITECTURES}


@pytest.fixture(scope="session")
def python_mpi(hpc_base: dict[str, Path], out: Path) -> dict[str, Path]:
    """The folders of the child recipe's images, by architecture."""
    del hpc_base  # built first: its layers are shared
    done = build_images("--image", "python-mpi-*-debian13-openmpi5.0-*", "--output", out)
    assert done.status == 0, done.stderr
    return {arch: out / f"python-mpi-1.0-debian13-openmpi5.0-{arch}" for arch in ARCHITECTURES}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A copy of the project's input files, for a test to change."""
    for name in ("recipes", "base-images", "tests/images"):
        shutil.copytree(PROJECT / name, tmp_path / name)
    shutil.copy(PROJECT / "matrix.yaml", tmp_path)
    return tmp_path


@pytest.fixture
def shared_folder(tools: Tools) -> Iterator[Path]:
    """A folder that the ordinary user can write to, on the file system of the builder's home."""
    tools.home.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if tools.ordinary_user:
            shutil.chown(folder, tools.ordinary_user)
        yield folder
