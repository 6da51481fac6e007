"""Locks between builders, and what is found of builders that are dead."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from builder.model.errors import Interrupted, MissingPrerequisite
from builder.system import locks
from builder.system.home import failure_of
from builder.system.locks import (
    has_writer,
    is_at,
    locked,
    locked_now,
    shared_lock,
    sole_writer,
    try_exclusive,
)
from builder.system.orphans import MARK, end_orphans, living


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_is_written_where_there_are_no_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    refused = pytest.raises(OSError, match="Input/output") if number == errno.EIO else nullcontext()
    path = tmp_path / "log"
    with refused, sole_writer(path), path.open("rb") as file:
        assert not has_writer(file)
    with refused, path.open("rb") as file:
        assert not has_writer(file)
    for lock in (locked, shared_lock, locked_now):
        with pytest.raises((OSError, MissingPrerequisite)) as caught, lock(tmp_path, "x"):
            pytest.fail("it was held")
        error = caught.value
        text = str(failure_of(error) if isinstance(error, OSError) else error)
        assert text.startswith(f"{tmp_path}/.x.lock: ")
        assert ("its file system has no locks\n  hint: mount" in text) == (number != errno.EIO)


def test_one_waits_for_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_MOMENT_S", 0.0)
    told = threading.Event()
    order: list[str] = []

    def tell(holder: str) -> None:
        order.append(holder)
        told.set()

    def second() -> None:
        with locked(tmp_path, "x", waiting=tell):
            order.append("second")

    with locked(tmp_path, "x"):
        thread = threading.Thread(target=second)
        thread.start()
        assert told.wait(10)
        order.append("first")
    thread.join(10)
    process = f"process {os.getpid()} on {os.uname().nodename}"
    assert [re.sub(r" \(since 2.*", "", each) for each in order] == [process, "first", "second"]


def test_no_lock_is_left(tmp_path: Path) -> None:
    with locked(tmp_path, "x"):
        assert [one.name for one in tmp_path.iterdir()] == [".x.lock"]
    with pytest.raises(ValueError, match="x"), locked(tmp_path, "x"):
        raise ValueError("x")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_by_one_although_its_file_comes_and_goes(tmp_path: Path) -> None:
    holders, most, lock = [0], [0], threading.Lock()

    def work() -> None:
        for _ in range(50):
            with locked(tmp_path, "x"):
                with lock:
                    holders[0] += 1
                    most[0] = max(most[0], holders[0])
                time.sleep(0.0005)
                with lock:
                    holders[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert most == [1]
    assert list(tmp_path.iterdir()) == []


def test_who_waits_can_be_stopped(tmp_path: Path) -> None:
    with (
        locked(tmp_path, "x"),
        pytest.raises(Interrupted),
        locked(tmp_path, "x", stopped=lambda: True),
    ):
        pytest.fail("it was held")


def test_several_are_together_and_nobody_is_alone_meanwhile(tmp_path: Path) -> None:
    with shared_lock(tmp_path, "x") as first:
        with try_exclusive(first) as alone:
            assert alone
        with shared_lock(tmp_path, "x") as second:
            for turn in (first, second):
                with try_exclusive(turn) as alone:
                    assert not alone
            with locked_now(tmp_path, "x") as alone:
                assert not alone
        with try_exclusive(first) as alone:
            assert alone
    with locked_now(tmp_path, "x") as alone:
        assert alone


SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture(name="folder")
def builders_folder(tmp_path: Path) -> Path:
    return tmp_path / "builders"


def child(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(
        SLEEP, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert started.stdout is not None
    started.stdout.readline()
    yield started
    started.kill()
    started.wait()
    started.stdout.close()


@pytest.fixture(name="orphan")
def orphan_of_a_dead_builder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with living(folder) as mark:
        pass
    yield from child(mark)


@pytest.fixture(name="helper")
def child_of_a_living_builder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with living(folder) as mark:
        yield from child(mark)


def ended(process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return True
        time.sleep(0.02)
    return False


def test_what_a_dead_builder_started_is_ended(
    folder: Path, orphan: subprocess.Popen[bytes], helper: subprocess.Popen[bytes]
) -> None:
    assert end_orphans(folder) == 1
    assert ended(orphan)
    assert helper.poll() is None


def test_what_others_started_is_left_alone(tmp_path: Path, orphan: subprocess.Popen[bytes]) -> None:
    elsewhere = tmp_path / "elsewhere"
    with living(elsewhere):
        assert end_orphans(elsewhere) == 0
    assert orphan.poll() is None


def test_locks_of_dead_builders_go_and_those_of_living_ones_stay(folder: Path) -> None:
    with living(folder) as mark:
        dead = folder / ".builder-dead.lock"
        dead.touch()
        end_orphans(folder)
        assert Path(mark).exists()
        assert not dead.exists()
    assert not Path(mark).exists()


def test_a_link_to_the_file_is_not_the_file(tmp_path: Path) -> None:
    """One that was put there after the file was opened."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    with (tmp_path / "file").open("rb") as file:
        assert is_at(file.fileno(), tmp_path / "file")
        assert not is_at(file.fileno(), tmp_path / "link")
        assert not is_at(file.fileno(), tmp_path / "nothing")
