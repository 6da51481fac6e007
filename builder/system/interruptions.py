"""What Ctrl-C, SIGTERM and SIGHUP do while work is under way or being ended."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptions(note: Callable[[], object]) -> Iterator[None]:
    """Call `note` for each interruption, in place of an exception at an arbitrary point.

    An exception that is raised inside the locks of `threading` leaves them in a state in which the
    next use of them fails. `note` must be reentrant, as `queue.SimpleQueue.put` is. A signal that
    is ignored, as `nohup` does with SIGHUP, stays so; outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: note()) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def uninterrupted() -> contextlib.AbstractContextManager[None]:
    """Disregard interruptions: the end is under way already."""
    return interruptions(lambda: None)
