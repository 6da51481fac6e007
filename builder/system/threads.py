"""Work in a few threads, which give results in order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, as_completed, wait
from functools import partial
from typing import TypeVar

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

    After the first failure or Ctrl-C, the work ends as `begun` says, and the failure is raised.
    """
    with begun(work, items, jobs=jobs, stop=stop) as futures:
        for done in as_completed(futures):
            done.result()
    return [future.result() for future in futures]


@contextlib.contextmanager
def begun(
    work: Callable[[T], R],
    items: Iterable[T],
    *,
    jobs: int = AT_ONCE,
    stop: Callable[[], object] | None = None,
) -> Iterator[list[Future[R]]]:
    """Begin `work` for all items, and yield the futures in the order of the items.

    If the context ends with an error or Ctrl-C, no new work begins, and `stop` is called to end the
    running work, which is waited for only a short time.
    """
    threads = Daemons(jobs)
    futures = [threads.begin(partial(work, item)) for item in items]
    try:
        yield futures
    except BaseException:
        for future in futures:
            future.cancel()
        if stop:
            stop()
            wait([future for future in futures if future.running()], timeout=_END_S)
        raise
