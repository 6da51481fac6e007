"""Many small pieces of work with a registry, several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_threads(
    work: Callable[[T], R], things: Iterable[T], *, jobs: int, stop: Callable[[], object]
) -> list[R]:
    """What `work` makes of each thing, in their order.

    The first failure, or Ctrl-C, calls `stop`, which has to end what is under way; nothing new is
    begun then, and the failure is raised.
    """
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        pending = [pool.submit(work, one) for one in things]
        try:
            for done in as_completed(pending):
                done.result()
        except BaseException:
            stop()
            pool.shutdown(cancel_futures=True)
            raise
        return [one.result() for one in pending]
