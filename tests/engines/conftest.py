"""Images made once for all engine tests."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from unittest import mock

import pytest
import slurm
from docker_engine import docker_engine
from harness import (
    ARCHITECTURES,
    LONG,
    NEEDED,
    PROJECT,
    Ended,
    build_images,
    folder_of_the_user,
    home_of_its_own,
    need,
    passed,
)
from made_releases import make_images, make_project
from projects import copy_of_project
from published import RECIPES, Pair, made_key
from real_registry import RealRegistry, real_registry
from small_base import LEAN, add_small_base, store_small_base
from small_images import Maker, maker_in

from builder.build.base_store import Bootstrapping, StoredBase, ensure_base
from builder.build.engines import Tools
from builder.build.mirror import find_mirror
from builder.load.project import load_project
from builder.system.files import link_or_copy
from builder.system.home import Home
from builder.system.locks import locked
from builder.system.process import Processes

sys.path.append(str(PROJECT / "tests/unit"))  # helpers that unit tests have, too
# What is tested is how images are built, and not how far behind a mirror is: some have security
# updates of one architecture alone for weeks. `test_ordinary_user.py` takes them.
os.environ.setdefault("BUILD_IMAGES_MAX_INDEX_AGE", "365")
os.environ.setdefault("BUILD_IMAGES_SECURITY_MIRROR", "none")
# Why tests may be skipped also where BUILD_IMAGES_NO_SKIPS says that everything is to run.
_OF_THE_MACHINE = (
    *("no GPU here", "there is a GPU here"),
    *("make test-long", "BUILD_IMAGES_TOKEN"),
)


def pytest_collection_finish() -> None:
    """Python's collector looks at what tests make, and no more at the thousands of tests."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if (marker := item.get_closest_marker("long")) and not LONG:
        pytest.skip(f"{marker.kwargs['reason']}: make test-long")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that was skipped for what the machine lacks has failed: nobody reads of it."""
    report = yield
    if report.skipped and os.environ.get("BUILD_IMAGES_NO_SKIPS"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(reason in why for reason in _OF_THE_MACHINE):
            report.outcome = "failed"
            report.longrepr = f"{why}, and with BUILD_IMAGES_NO_SKIPS nothing is to be skipped"
    return report


@pytest.fixture(scope="session")
def tools() -> Tools:
    """This machine's programs; skips, with their names, where engines are missing."""
    need(*NEEDED)
    home = Home.of_environment()
    home.work.mkdir(parents=True, exist_ok=True)  # on a new machine nothing has been built yet
    return Tools(processes=Processes(), home=home)


@pytest.fixture(scope="session")
def out(tools: Tools) -> Path:
    """The output folder of all engine tests; what is in it and unchanged is not built again."""
    del tools
    return PROJECT / "out" / "tests"


@pytest.fixture(scope="session")
def main_job(out: Path) -> Ended:
    """The main job on the default selection: `hpc-base` for both architectures.

    Once in a run of `ci/tests.py`, whose processes share what it built: whoever asks first runs it.
    What it built is read by all: a test that changes an image, or verifies it, takes `copy_of`.
    """
    result = out / f"main-job-{os.environ.get('BUILD_IMAGES_TEST_RUN', 'alone')}.json"
    with locked(out, result.stem):
        if not result.exists() or "BUILD_IMAGES_TEST_RUN" not in os.environ:
            result.write_text(json.dumps(dataclasses.asdict(build_images("--output", out))))
    return Ended(**json.loads(result.read_text()))


@pytest.fixture(scope="session")
def hpc_base(main_job: Ended, out: Path) -> dict[str, Path]:
    """The folders of the default images, by architecture."""
    passed(main_job)
    return {arch: out / f"hpc-base-1.0-debian13-openmpi5.0-{arch}" for arch in ARCHITECTURES}


@pytest.fixture(scope="session")
def python_mpi(hpc_base: dict[str, Path], out: Path) -> dict[str, Path]:
    """The folders of the child recipe's images, by architecture, as OCI layouts alone."""
    del hpc_base  # built first: its layers are shared
    image = "python-mpi-*-debian13-openmpi5.0-*"
    archs = [f"--arch={arch}" for arch in ARCHITECTURES]
    passed(build_images("--image", image, *archs, "--format", "oci", "--output", out))
    return {arch: out / f"python-mpi-1.0-debian13-openmpi5.0-{arch}" for arch in ARCHITECTURES}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A copy of the project's input files, for a test to change."""
    return copy_of_project(tmp_path)


@pytest.fixture
def shared_folder(tools: Tools) -> Iterator[Path]:
    """A folder that the ordinary user can write to, on the file system of the builder's home."""
    with folder_of_the_user(tools) as folder:
        yield folder


@pytest.fixture(scope="session")
def unpacked(tools: Tools, hpc_base: dict[str, Path]) -> Iterator[Path]:
    """The x86_64 tarball's tree as the ordinary user's, which no test changes."""
    with folder_of_the_user(tools) as folder:
        words = ["tar", "-xzf", str(hpc_base["x86_64"] / "image.tar.gz"), "-C", str(folder)]
        tools.processes.capture(words, user=tools.ordinary_user)
        yield folder


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[dict[str, str]]:
    """A Slurm of two nodes, as the environment in which `srun` finds it."""
    if why := slurm.why_not():
        pytest.skip(why)
    with slurm.two_nodes() as environment:
        yield environment


@pytest.fixture(scope="session")
def docker_host(tools: Tools) -> Iterator[str]:
    """The address of a Docker Engine of the tests' own."""
    del tools
    need("dockerd", "docker", "skopeo")
    if os.geteuid():
        pytest.skip("dockerd needs root")
    with docker_engine() as host:
        yield host


@pytest.fixture(scope="session")
def small_images(hpc_base: dict[str, Path], tools: Tools) -> Iterator[Maker]:
    """Makes small images, cut out of the default ones."""
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="small-") as name:
        yield maker_in(Path(name), hpc_base, tools)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with finished images of two recipes and two architectures, none of them built."""
    need("docker-registry", "openssl")
    project = make_project(tmp_path_factory.mktemp("made") / "project", recipes=RECIPES)
    make_images(project)
    return project


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Keys to sign with, of nobody else; decrypting the private one takes no time here."""
    with mock.patch.dict("builder.trust.proof.keys._SCRYPT", {"N": 2}):
        return made_key(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    """The same, for a test to spoil."""
    return Path(shutil.copytree(made, tmp_path / "project"))


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of the test's own, without tools."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def debian13(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> StoredBase:
    """The base for x86_64 in the shared home; made once, by whoever asks first."""
    return ensure_base(
        load_project(PROJECT).bases["debian13"],
        "x86_64",
        "localhost/build-images/sample:13",
        Bootstrapping(
            store=tools.home.bases,
            mirror=find_mirror(),
            processes=tools.processes,
            log=tmp_path_factory.mktemp("base") / "log",
            say=print,
        ),
    )


@pytest.fixture
def home(tools: Tools, debian13: StoredBase) -> Iterator[Path]:
    """A home with this machine's tools and bases, and nothing built."""
    del debian13  # there it is
    half_made = shutil.ignore_patterns(".*")  # by other tests, with a /proc mounted in it
    with home_of_its_own(tools) as folder:
        bases = folder / "bases"
        shutil.copytree(tools.home.bases, bases, copy_function=link_or_copy, ignore=half_made)
        yield folder


@pytest.fixture
def small_site(tmp_path: Path) -> Path:
    """A project whose only base is of 10 MB, and in the store of `small_home`."""
    site = copy_of_project(tmp_path)
    add_small_base(site)
    return site


@pytest.fixture
def small_home(tools: Tools, small_site: Path) -> Iterator[Path]:
    """A home with this machine's tools and the base of `small_site`, and nothing built."""
    with home_of_its_own(tools) as folder:
        store_small_base(small_site, folder)
        yield folder


@pytest.fixture(scope="session")
def lean(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small image, `LEAN`, in all formats and verified; its project is above."""
    site = copy_of_project(tmp_path_factory.mktemp("lean"))
    add_small_base(site)
    with home_of_its_own(tools) as home:
        store_small_base(site, home)
        words = ("--project", site, "--image", LEAN)
        passed(build_images(*words, env={"BUILD_IMAGES_HOME": str(home)}))
    return site / "out" / LEAN


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RealRegistry]:
    """A registry on loopback without TLS."""
    need("docker-registry")
    with real_registry(tmp_path / "registry", in_memory=True) as running:
        yield running


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[RealRegistry]:
    """A registry on loopback with TLS and a password."""
    need("docker-registry", "openssl")
    with real_registry(tmp_path / "secured", secured=True, in_memory=True) as running:
        yield running
