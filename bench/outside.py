"""Signals that come to a bench from outside, while commands that run inside of it catch them.

`build-images` takes SIGTERM and SIGHUP for Ctrl-C, says "interrupted" and ends with 130. A bench
that calls it as a function would take an outer time-out for a result, and go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


class Signals:
    """What came, in order; `check` ends the bench by it."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def check(self) -> None:
        """Raise `SystemExit` if SIGINT, SIGTERM or SIGHUP came since."""
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._pipe, 100):
                if number in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}:
                    name = signal.Signals(number).name
                    raise SystemExit(f"{name} came from outside: this is no result")


@contextlib.contextmanager
def outside_signals() -> Iterator[Signals]:
    """Notice signals, whoever handles them."""
    receive, send = os.pipe()
    os.set_blocking(receive, False)
    os.set_blocking(send, False)
    before = signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    try:
        yield Signals(receive)
    finally:
        signal.set_wakeup_fd(before)
        os.close(receive)
        os.close(send)
