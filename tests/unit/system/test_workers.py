"""Forked workers: they answer as the work does, and nobody is left without an answer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import pytest

from builder.model.errors import Interrupted, Refused
from builder.system.threads import Workers, workers

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a machine of one core")
END_S = 60.0


@pytest.fixture(name="alone")
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests leave threads that wait for nothing."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def work(words: Sequence[str], check: Callable[[], object]) -> object:
    """What it is told, in words."""
    what, *rest = words
    if what == "refuse":
        raise Refused("no", hint="ask again")
    if what == "fail":
        raise OSError(28, "full")
    if what == "break":
        raise RuntimeError("a fault of the program")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "forever":
        Path(rest[0]).touch()
        while True:
            check()
            time.sleep(0.01)
    return Path(rest[0]).write_text(str(os.getpid()))


def nothing() -> None:
    """No reason to end."""


def done(some: Workers, words: Sequence[str], check: Callable[[], object]) -> bool:
    """Whether a process did the work."""
    return some.finished(some.begin(words), check)


@pytest.mark.usefixtures("alone")
def test_the_work_is_done_in_other_processes(tmp_path: Path) -> None:
    with workers(work, 2) as some:
        assert len(some.processes) == 2
        for number in range(4):
            assert done(some, ["write", str(tmp_path / str(number))], nothing)
    found = {int(one.read_text()) for one in tmp_path.iterdir()}
    assert found <= {one.pid for one in some.processes}
    assert os.getpid() not in found
    assert not any(one.is_alive() for one in some.processes)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("what", ["fail", "refuse", "break", "die"])
def test_whoever_asks_finds_what_is_in_the_way(what: str, tmp_path: Path) -> None:
    with workers(work, 2) as some:
        assert not done(some, [what], nothing)
        assert done(some, ["write", str(tmp_path / "after")], nothing) is (what != "die")


@pytest.mark.usefixtures("alone")
def test_a_reason_to_end_ends_the_work(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def check() -> None:
        if begun.exists():
            raise Interrupted("enough")

    with workers(work, 2) as some:
        with pytest.raises(Interrupted, match="enough"):
            done(some, ["forever", str(begun)], check)
        assert done(some, ["write", str(tmp_path / "by-another")], nothing)


@pytest.mark.usefixtures("alone")
def test_the_end_ends_the_work(tmp_path: Path) -> None:
    begun, told = tmp_path / "begun", list[BaseException]()

    def ask(some: Workers) -> None:
        try:
            done(some, ["forever", str(begun)], nothing)
        except BaseException as error:
            told.append(error)

    with workers(work, 2) as some:
        thread = threading.Thread(target=ask, args=(some,))
        thread.start()
        wait_for(begun.exists)
    thread.join(END_S)
    assert [type(one) for one in told] == [Interrupted]


@pytest.mark.usefixtures("alone")
def test_when_the_program_is_killed_its_workers_end(tmp_path: Path) -> None:
    begun, known = tmp_path / "begun", tmp_path / "known"
    program = os.fork()
    if not program:
        with workers(work, 1) as some:
            known.write_text(str(some.processes[0].pid))
            done(some, ["forever", str(begun)], nothing)
        os._exit(0)
    wait_for(begun.exists)
    os.kill(program, signal.SIGKILL)
    os.waitpid(program, 0)
    wait_for(lambda: not running(int(known.read_text())))


@pytest.mark.usefixtures("alone")
def test_where_no_thread_can_begin_nobody_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", start)
        with workers(work, 2) as some:
            assert not some.processes
            assert not done(some, ["write", "nowhere"], nothing)
    wait_for(lambda: not multiprocessing.active_children())


@pytest.mark.usefixtures("alone")
def test_an_interrupt_while_they_begin_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = ProcessPoolExecutor.submit

    def interrupted(pool: ProcessPoolExecutor, function: Callable[[], int]) -> Future[int]:
        future = submit(pool, function)
        signal.raise_signal(signal.SIGINT)
        return future

    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    try:
        with pytest.raises(KeyboardInterrupt), workers(work, 2):
            pytest.fail("it was interrupted before")
    finally:
        signal.signal(signal.SIGINT, before)
    assert not multiprocessing.active_children()


def test_beside_threads_there_are_none() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        with workers(work, 2) as some:
            assert not some.processes
            assert not done(some, ["write", "nowhere"], nothing)
    finally:
        go.set()
        thread.join()


def running(process: int) -> bool:
    """Whether a process is there that is more than an entry."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + END_S
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)
