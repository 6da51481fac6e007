"""Work in threads: in order, a few at once, errors where the result is taken."""

from __future__ import annotations

import concurrent.futures
import functools
import signal
import threading
import time

import pytest

from builder.system.orphans import Daemons
from builder.system.threads import Coming, in_threads


@pytest.mark.parametrize("way", ["in threads", "coming"])
def test_results_come_in_order_and_a_few_are_worked_on_at_once(way: str) -> None:
    at_once: list[int] = []
    running, lock = [0], threading.Lock()

    def work(number: int) -> int:
        with lock:
            running[0] += 1
            at_once.append(running[0])
        time.sleep(0.02 if number % 2 else 0.05)
        with lock:
            running[0] -= 1
        return number * number

    if way == "in threads":
        results = in_threads(work, range(12), jobs=3)
    else:
        coming = Coming[int](threads=3)
        works = [(str(number), functools.partial(work, number)) for number in range(12)]
        for name, square in works:
            coming.ask(name, square, taker="first")
        results = [coming.get(name, square, "first") for name, square in works]
    assert results == [number * number for number in range(12)]
    assert max(at_once) == 3


def test_what_several_want_is_worked_on_once_in_the_order_asked() -> None:
    begun: list[str] = []
    coming = Coming[str](threads=1)

    def work(name: str) -> str:
        begun.append(name)
        return name.upper()

    for name in ("a", "b", "a", "c"):
        coming.ask(name, functools.partial(work, name), taker="first")
    for taker in ("first", "second"):
        found = [coming.get(name, functools.partial(work, name), taker) for name in "cba"]
        assert found == ["C", "B", "A"]
    assert begun == ["a", "b", "c"]


def test_a_failure_is_that_of_whoever_asked_first() -> None:
    coming = Coming[str]()

    def fails() -> str:
        raise ValueError("the first one's")

    coming.ask("a", fails, taker="first")
    assert coming.get("a", lambda: "tried anew", "second") == "tried anew"
    with pytest.raises(ValueError, match="the first one's"):
        coming.get("a", lambda: "never", "first")


def test_what_is_forgotten_is_not_begun_and_comes_for_another() -> None:
    begun: list[str] = []
    go, going = threading.Event(), threading.Event()
    coming = Coming[str](threads=1)

    def work(name: str) -> str:
        begun.append(name)
        return name

    def waits() -> str:
        going.set()
        go.wait()
        return "came"

    coming.ask("busy", waits, taker="first")
    going.wait()
    for name, taker in (("mine", "first"), ("theirs", "second")):
        coming.ask(name, functools.partial(work, name), taker)
    coming.forget("first")
    go.set()
    assert coming.get("theirs", lambda: "never", "second") == "theirs"
    assert coming.get("mine", lambda: "brought by the second", "second") == "brought by the second"
    assert begun == ["theirs"]


def test_an_interrupt_while_another_ones_work_is_waited_for_is_not_lost() -> None:
    class Interrupt(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    go = threading.Event()
    coming = Coming[bool]()
    coming.ask("a", lambda: go.wait(10), taker="first")
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(Interrupt):
            coming.get("a", lambda: False, "second")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        go.set()
    assert coming.get("a", lambda: False, "second"), "it came all the same"


def test_work_that_comes_when_all_is_done_is_begun_and_no_more_at_once_than_allowed() -> None:
    daemons = Daemons(1)
    for number in range(2):
        go = threading.Event()

        def work(go: threading.Event = go) -> threading.Thread:
            go.wait(5)
            return threading.current_thread()

        first, second = daemons.begin(work), daemons.begin(functools.partial(abs, number))
        with pytest.raises(concurrent.futures.TimeoutError):
            second.result(0.1)
        go.set()
        first.result(5).join(5)
        assert second.result(5) == number
