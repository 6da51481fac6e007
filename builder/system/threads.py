"""Work in a few threads, which give results in order, and do shared work only once."""

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
_END_S = 2.0  # for stopped work to end; opening a connection may take longer


def in_threads(
    work: Callable[[T], R],
    items: Iterable[T],
    *,
    jobs: int = AT_ONCE,
    stop: Callable[[], object] | None = None,
) -> list[R]:
    """Return the results of `work` for all items, in their order.

    After the first failure or Ctrl-C, no new work begins, `stop` is called to end the running work,
    and the failure is raised within a short time.
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
    """Named work that several takers request: done once, by a few threads, in order of requests.

    A failure is raised for the taker that asked first; any other taker then does the work itself.
    """

    def __init__(self, threads: int = AT_ONCE) -> None:
        self._threads = Daemons(threads)
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked[R]] = {}

    def ask(self, name: str, work: Callable[[], R], taker: object) -> _Asked[R]:
        """Begin the work, unless it is running or done."""
        with self._lock:
            if name not in self._asked:
                self._asked[name] = _Asked(taker=taker, future=self._threads.begin(work))
            return self._asked[name]

    def get(self, name: str, work: Callable[[], R], taker: object) -> R:
        """Return the result of the work, once it is done."""
        asked = self.ask(name, work, taker)
        wait([asked.future])
        has_failed = asked.future.cancelled() or asked.future.exception() is not None
        return work() if has_failed and asked.taker is not taker else asked.future.result()

    def forget(self, taker: object) -> None:
        """Cancel a taker's requests whose work has not begun."""
        with self._lock:
            for asked in self._asked.values():
                if asked.taker is taker:
                    asked.future.cancel()
