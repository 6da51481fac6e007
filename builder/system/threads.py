"""Work in a few threads, with results in order, and work that several want, done once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, as_completed, wait
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from builder.system.orphans import Daemons

AT_ONCE = 4  # threads
T = TypeVar("T")
R = TypeVar("R")
_END_S = 2.0  # for stopped work to end; a connection that is being opened takes longer


def in_threads(
    work: Callable[[T], R],
    items: Iterable[T],
    *,
    jobs: int = AT_ONCE,
    stop: Callable[[], object] | None = None,
) -> list[R]:
    """Return the result of `work` for each item, in their order.

    The first failure, or Ctrl-C, calls `stop`, which has to end what is under way; nothing new is
    begun then, and the failure is raised, at once or very soon.
    """
    threads = Daemons(jobs)
    futures = [threads.begin(partial(work, item)) for item in items]
    try:
        for done in as_completed(futures):
            done.result()
    except BaseException:
        for future in futures:
            future.cancel()
        if stop:
            stop()
            wait([future for future in futures if future.running()], timeout=_END_S)
        raise
    return [future.result() for future in futures]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked(Generic[R]):
    taker: object
    future: Future[R]


class Coming(Generic[R]):
    """Work by name that several takers want: done once, a few at a time, first come first.

    A failure is raised for the taker that asked first; another one does the work itself then.
    """

    def __init__(self, threads: int = AT_ONCE) -> None:
        self._threads = Daemons(threads)
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked[R]] = {}

    def ask(self, name: str, work: Callable[[], R], taker: object) -> _Asked[R]:
        """Have work begun, unless it is under way or done."""
        with self._lock:
            if name not in self._asked:
                self._asked[name] = _Asked(taker=taker, future=self._threads.begin(work))
            return self._asked[name]

    def get(self, name: str, work: Callable[[], R], taker: object) -> R:
        """Return the result of some work, when it is done."""
        asked = self.ask(name, work, taker)
        wait([asked.future])
        has_failed = asked.future.cancelled() or asked.future.exception() is not None
        return work() if has_failed and asked.taker is not taker else asked.future.result()

    def forget(self, taker: object) -> None:
        """Cancel the requests of a taker that nobody works on yet."""
        with self._lock:
            for asked in self._asked.values():
                if asked.taker is taker:
                    asked.future.cancel()
