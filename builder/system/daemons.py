"""Threads that keep nobody from ending the program: those of a pool are waited for at its end."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

R = TypeVar("R")


class Daemons:
    """A few threads at most that work on what they are handed, first come first.

    One may wait for a server that says nothing.
    """

    def __init__(self, most: int) -> None:
        self._most, self._running = most, 0
        self._lock = threading.Lock()
        self._todo: deque[Callable[[], object]] = deque()

    def begin(self, work: Callable[[], R]) -> Future[R]:
        """Have something worked on; it may be cancelled until that begins."""
        future: Future[R] = Future()
        with self._lock:
            self._todo.append(functools.partial(_settle, future, work))
            if self._running < self._most:
                self._running += 1
                threading.Thread(target=self._run, daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._todo:
                    self._running -= 1
                    return
                work = self._todo.popleft()
            work()


def _settle(future: Future[R], work: Callable[[], R]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # whoever takes the result is told
        future.set_exception(error)
