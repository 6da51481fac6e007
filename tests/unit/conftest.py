"""All unit tests at once run in some more processes than processors; none sees this host."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_registry import Fake, fake_registry

from builder.load import document

pytest.register_assert_rewrite("samples")  # so that a changed golden file is shown as a diff
HERE = Path(__file__).parent
# Tests take helpers from other rooms' tests, whichever files are run.
sys.path += [str(folder) for folder in sorted(HERE.iterdir()) if folder.is_dir()]
os.environ["BUILD_IMAGES_SHARED"] = ""  # what this machine's users share is no matter of a test
MEMORY, MEMORY_GB = Path("/dev/shm"), 4
OF_TESTS = "build-images-tests-"  # begins the names of folders there


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Ask pytest-xdist for processes where the whole folder is run and `-n` says nothing else."""
    if hasattr(config, "workerinput"):
        return
    chosen = getattr(config.option, "numprocesses", 0)  # 0: there is no xdist
    places = [Path(argument).resolve() for argument in config.args]
    if chosen is None and places == [HERE] and not config.option.usepdb:
        config.option.numprocesses = 2 * len(os.sched_getaffinity(0))  # for tests that wait
        config.option.dist = "worksteal"
    if config.option.basetemp is None and all(HERE in (place, *place.parents) for place in places):
        config.option.basetemp = in_memory()


def in_memory() -> str | None:
    """A folder for the temporary files of this run, where memory has room and runs programs.

    On ext4, looking for inodes that were not freed a moment ago takes a sixth of the tests' time.
    The run holds a lock on it. Folders without one are of runs that were killed, and are removed:
    process numbers would not tell, because another PID namespace has its own.
    """
    if not MEMORY.is_dir():
        return None
    start = lock(MEMORY, fcntl.LOCK_EX)  # no other run sees a new folder before it is locked
    try:
        for folder in MEMORY.glob(f"{OF_TESTS}*"):
            with contextlib.suppress(OSError):
                descriptor = lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)
        here = os.statvfs(MEMORY)
        if here.f_flag & os.ST_NOEXEC or here.f_bavail * here.f_frsize >> 30 < MEMORY_GB:
            return None
        own = tempfile.mkdtemp(prefix=OF_TESTS, dir=MEMORY)
        lock(own, fcntl.LOCK_EX)  # to the end of this process
        return f"{own}/t"
    finally:
        os.close(start)


def lock(folder: Path | str, how: int) -> int:
    """Lock a folder while the descriptor is open; raise OSError where that would block."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Free the memory, unless files of a failed test are in it."""
    folder = Path(str(session.config.option.basetemp)).parent
    is_own = folder.name.startswith(OF_TESTS) and not hasattr(session.config, "workerinput")
    if exitstatus == 0 and is_own:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_finish() -> None:
    """The collector need not scan thousands of tests and all modules again and again."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _derive_each_key_once() -> Iterator[None]:
    """A third of a second goes into each key that is derived from a password, as it should."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashlib, "scrypt", functools.cache(hashlib.scrypt))
        yield


@pytest.fixture(scope="session", autouse=True)
def _parse_each_text_once() -> Iterator[None]:
    """Hundreds of tests load the shipped project; what its files are parsed into is frozen."""
    parse, known = document.parse_bytes, dict[tuple[bytes, str], document.Node]()

    def parsed(
        data: bytes, file: str, faults: document.Faults, *, if_empty: str = ""
    ) -> document.Node | None:
        if (data, file) in known:
            return known[data, file]
        before = len(faults.found)
        node = parse(data, file, faults, if_empty=if_empty)
        if node and len(faults.found) == before:
            known[data, file] = node
        return node

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "parse_bytes", parsed)
        yield


@pytest.fixture(name="fake")
def registry_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A registry in memory, and a home of the test's own."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    with fake_registry() as fake:
        yield fake
