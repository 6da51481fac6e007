"""How often and how long something that may pass is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from builder.model.errors import Interrupted
from builder.registry.failures import Passing

ATTEMPTS = 5  # without anything gained between them
_FIRST_S, _LONGEST_S = 0.5, 120.0
_SELDOM_S = 5.0
_ALL = 40  # attempts at one thing, however much each gains


class Patience:
    """The attempts at one thing: a bounded number, each later than the one before.

    `wait` sleeps for a number of seconds, of which `tell` is told. A server that asks for more than
    two minutes is not waited for.
    """

    def __init__(
        self,
        wait: Callable[[float], object] = time.sleep,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._wait, self._tell = wait, tell
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
        wait_s = max(_FIRST_S * 2 ** (self._vain - 1), passing.wait_s)
        again = f"attempt {self._vain + 1} of {ATTEMPTS} in {wait_s:g} s"
        self._tell(f"{passing.failure.args[0]}; {again}")
        self._wait(wait_s)


class Seldom:
    """Tells of something once for many requests that wait for the same."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell, self._lock = tell, threading.Lock()
        self._next = 0.0

    def __call__(self, text: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now < self._next:
                return
            self._next = now + _SELDOM_S
        self._tell(text)


class Sleep:
    """Sleeps that can be ended: then they raise `Interrupted`, and so does `check`."""

    def __init__(self) -> None:
        self._stopping = threading.Event()

    def __call__(self, seconds: float) -> None:
        self._stopping.wait(seconds)
        self.check()

    @property
    def is_ended(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Raise `Interrupted` after `stop`."""
        if self.is_ended:
            raise Interrupted("interrupted")

    def stop(self) -> None:
        """End all sleeps, and what is under way in other threads at its next piece."""
        self._stopping.set()
