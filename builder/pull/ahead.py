"""Work that a few threads do ahead, and whose results are taken in order."""

from __future__ import annotations

import functools
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(
    work: Callable[[T], R], items: Sequence[T], *, threads: int
) -> tuple[list[Future[R]], Callable[[], None]]:
    """Begin to work on items, the first ones first: their futures, and what ends that early.

    The threads are daemons. One that waits for a server that says nothing keeps nobody from ending
    the program; a pool's threads would.
    """
    futures: list[Future[R]] = [Future() for _ in items]
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(items)):
        todo.put(index)

    def run() -> None:
        while True:
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            _settle(futures[index], functools.partial(work, items[index]))

    for _ in range(min(threads, len(items))):
        threading.Thread(target=run, daemon=True).start()

    def end() -> None:
        for future in futures:
            future.cancel()

    return futures, end


def _settle(future: Future[R], work: Callable[[], R]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # whoever takes the result is told
        future.set_exception(error)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked(Generic[R]):
    name: str
    work: Callable[[], R]
    taker: object
    future: Future[R]


class Coming(Generic[R]):
    """Things that several takers want: each is worked on once, a few at a time, first come first.

    What failed is told to whoever asked for it first; another taker has it tried anew.
    """

    def __init__(self, threads: int = 4) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._todo: deque[_Asked[R]] = deque()
        self._asked: dict[str, _Asked[R]] = {}
        self._working = 0

    def ask(self, name: str, work: Callable[[], R], taker: object) -> None:
        """See to it that a thing comes; nothing happens if it does, or has come."""
        self._ask(name, work, taker)

    def get(self, name: str, work: Callable[[], R], taker: object) -> R:
        """A thing, when it has come."""
        while True:
            asked = self._ask(name, work, taker)
            wait([asked.future])
            if not asked.future.cancelled() and asked.future.exception() is None:
                return asked.future.result()
            with self._lock:
                if self._asked.get(name) is asked:
                    del self._asked[name]
            if asked.taker is taker:
                return asked.future.result()

    def forget(self, taker: object) -> None:
        """What a taker asked for, and nobody works on yet, is not begun."""
        with self._lock:
            for one in self._todo:
                if one.taker is taker and one.future.cancel():
                    self._asked.pop(one.name, None)

    def _ask(self, name: str, work: Callable[[], R], taker: object) -> _Asked[R]:
        with self._lock:
            if name not in self._asked:
                self._asked[name] = _Asked(name=name, work=work, taker=taker, future=Future())
                self._todo.append(self._asked[name])
                if self._working < self._threads:
                    self._working += 1
                    threading.Thread(target=self._run, daemon=True).start()
            return self._asked[name]

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._todo:
                    self._working -= 1
                    return
                asked = self._todo.popleft()
            _settle(asked.future, asked.work)
