"""How often and how long something that may pass is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from builder.errors import Interrupted
from builder.registry.failures import Passing

ATTEMPTS = 5  # without anything gained between them
_FIRST_S, _LONGEST_S = 0.5, 120.0
_ALL = 40  # attempts at one thing, however much each gains


class Patience:
    """The attempts at one thing: a bounded number, each later than the one before.

    `wait` sleeps for a number of seconds. A server that asks for more than two minutes is not
    waited for.
    """

    def __init__(self, wait: Callable[[float], object] = time.sleep) -> None:
        self._wait = wait
        self._vain = self._all = 0

    def gained(self) -> None:
        """The last attempt brought part of the thing: the next ones count from one again."""
        self._vain = 0

    def after(self, passing: Passing) -> None:
        """Wait until the next attempt; raises the failure when there is to be none."""
        self._vain += 1
        self._all += 1
        over = self._vain >= ATTEMPTS or self._all >= _ALL or passing.wait_s > _LONGEST_S
        if over:
            raise passing.failure from passing.__cause__
        self._wait(max(_FIRST_S * 2 ** (self._vain - 1), passing.wait_s))


class Sleep:
    """Sleeps that can be ended: then they raise `Interrupted`, and so does `check`."""

    def __init__(self) -> None:
        self._stopping = threading.Event()

    def __call__(self, seconds: float) -> None:
        self._stopping.wait(seconds)
        self.check()

    def check(self) -> None:
        """Raise `Interrupted` after `stop`."""
        if self._stopping.is_set():
            raise Interrupted("interrupted")

    def stop(self) -> None:
        """End all sleeps, and what is under way in other threads at its next piece."""
        self._stopping.set()
