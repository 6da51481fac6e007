"""Work that a few threads do ahead, and whose results are taken in order."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from builder.system.orphans import Daemons

AT_ONCE = 4  # things that come
T = TypeVar("T")
R = TypeVar("R")


def ahead(
    work: Callable[[T], R], items: Sequence[T], *, threads: int
) -> tuple[list[Future[R]], Callable[[], None]]:
    """Begin to work on items, the first ones first: their futures, and what ends that early."""
    daemons = Daemons(threads)
    futures = [daemons.begin(functools.partial(work, item)) for item in items]

    def end() -> None:
        for future in futures:
            future.cancel()

    return futures, end


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked(Generic[R]):
    taker: object
    future: Future[R]


class Coming(Generic[R]):
    """Things that several takers want: each is worked on once, a few at a time, first come first.

    What failed is told to whoever asked for it first; another taker has it tried anew.
    """

    def __init__(self, threads: int = AT_ONCE) -> None:
        self._threads = Daemons(threads)
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked[R]] = {}

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
        """Cancel the requests of a taker that nobody works on yet."""
        with self._lock:
            mine = [name for name, request in self._asked.items() if request.taker is taker]
            for name in mine:
                if self._asked[name].future.cancel():
                    del self._asked[name]

    def _ask(self, name: str, work: Callable[[], R], taker: object) -> _Asked[R]:
        with self._lock:
            if name not in self._asked:
                self._asked[name] = _Asked(taker=taker, future=self._threads.begin(work))
            return self._asked[name]
