"""Work done ahead: in order, a few at once, errors where the result is taken."""

from __future__ import annotations

import threading
import time

import pytest

from builder.pull.ahead import ahead


def test_results_come_in_order_and_a_few_are_worked_on_at_once() -> None:
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

    futures, _ = ahead(work, range(12), threads=3)
    assert [one.result() for one in futures] == [number * number for number in range(12)]
    assert max(at_once) == 3


def test_an_error_comes_where_the_result_is_taken() -> None:
    def work(number: int) -> int:
        if number == 1:
            raise ValueError(number)
        return number

    futures, _ = ahead(work, range(3), threads=2)
    assert futures[0].result() == 0
    with pytest.raises(ValueError, match="1"):
        futures[1].result()
    assert futures[2].result() == 2


def test_what_has_not_begun_is_not_begun_after_the_end() -> None:
    begun: list[int] = []
    go = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        go.wait()

    futures, end = ahead(work, range(5), threads=1)
    while not begun:
        time.sleep(0.01)
    end()
    go.set()
    futures[0].result()
    assert begun == [0]
    assert all(one.cancelled() for one in futures[1:])
