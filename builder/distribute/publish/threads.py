"""Many small pieces of work with a registry, several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import as_completed, wait
from functools import partial
from typing import TypeVar

from builder.system.orphans import Daemons

T = TypeVar("T")
R = TypeVar("R")
_END_S = 2.0  # for what is told to stop; one that still connects to a server takes longer


def in_threads(
    work: Callable[[T], R], things: Iterable[T], *, jobs: int, stop: Callable[[], object]
) -> list[R]:
    """Return the result of `work` for each thing, in their order.

    The first failure, or Ctrl-C, calls `stop`, which has to end what is under way; nothing new is
    begun then, and the failure is raised, at once or very soon.
    """
    threads = Daemons(jobs)
    pending = [threads.begin(partial(work, thing)) for thing in things]
    try:
        for done in as_completed(pending):
            done.result()
    except BaseException:
        for future in pending:
            future.cancel()
        stop()
        wait([future for future in pending if future.running()], timeout=_END_S)
        raise
    return [future.result() for future in pending]
