"""All unit tests at once run in some more processes than processors; none sees this host."""

from __future__ import annotations

import functools
import gc
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_registry import Fake, fake_registry

from builder.load import document

HERE = Path(__file__).parent
# Tests take helpers from other rooms' tests, whichever files are run.
sys.path += [str(folder) for folder in sorted(HERE.iterdir()) if folder.is_dir()]
os.environ["BUILD_IMAGES_SHARED"] = ""  # what this machine's users share is no matter of a test


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Ask pytest-xdist for processes where the whole folder is run and `-n` says nothing else."""
    chosen = getattr(config.option, "numprocesses", 0)  # 0: there is no xdist
    folders = [Path(argument).resolve() for argument in config.args]
    is_worker = hasattr(config, "workerinput")
    if chosen is None and folders == [HERE] and not (is_worker or config.option.usepdb):
        cores = len(os.sched_getaffinity(0))
        config.option.numprocesses = cores + cores // 2  # a quarter of the time is waiting
        config.option.dist = "worksteal"


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
