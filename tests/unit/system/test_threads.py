"""Work in threads: in order, a few at once, errors where the result is taken."""

from __future__ import annotations

import concurrent.futures
import functools
import signal
import threading
import time

import pytest

from builder.system.orphans import Daemons
from builder.system.threads import begun, in_threads


@pytest.mark.parametrize("way", ["in threads", "begun"])
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
        with begun(work, range(12), jobs=3) as futures:
            results = [future.result() for future in futures]
    assert results == [number * number for number in range(12)]
    assert max(at_once) == 3


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_beside_the_work_ends_it(error: type[BaseException]) -> None:
    """Running work is stopped and waited for; waiting work never begins."""
    ended = list[int]()
    running, go = threading.Event(), threading.Event()

    def work(number: int) -> None:
        running.set()
        go.wait(20)
        ended.append(number)

    def fail() -> None:
        running.wait(20)
        raise error

    with pytest.raises(error), begun(work, range(3), jobs=1, stop=go.set):
        fail()
    assert ended == [0]


def test_an_interrupt_while_work_is_waited_for_is_not_lost() -> None:
    class Interrupt(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    go = threading.Event()
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(Interrupt), begun(go.wait, [20], stop=go.set) as [future]:
            future.result()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert future.result(), "it was stopped"


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
