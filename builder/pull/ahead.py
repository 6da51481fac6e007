"""Work that a few threads do ahead, and whose results are taken in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

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
            future = futures[index]
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work(items[index]))
            except BaseException as error:  # whoever takes the result is told
                future.set_exception(error)

    for _ in range(min(threads, len(items))):
        threading.Thread(target=run, daemon=True).start()

    def end() -> None:
        for future in futures:
            future.cancel()

    return futures, end
