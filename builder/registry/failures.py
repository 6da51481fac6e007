"""Failures of registries: each names the request, the server, and what to do next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from builder.model.errors import BuildImagesError, Interrupted


class RegistryFailed(BuildImagesError):
    """A registry refused a request, and would refuse it again.

    `code` is its own error code (`DENIED`), empty if it gave none; `status` the HTTP status, or 0.
    """

    code, status = "", 0


class NotThere(RegistryFailed):
    """The registry has no such manifest, blob or repository (404)."""


class Denied(RegistryFailed):
    """The registry denies access: no credentials, wrong ones (401), or too few rights (403)."""

    exit_code = 4


class Unreachable(RegistryFailed):
    """A registry does not answer, or TLS cannot verify it."""

    exit_code = 4

    def __init__(self, message: str, *, reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class WrongContent(RegistryFailed):
    """The registry's content does not match its digest, size or kind."""

    exit_code = 5


class Transient(Exception):
    """A failure that may pass by itself; `wait_s` is the pause that the server asks for."""

    def __init__(self, failure: RegistryFailed, *, wait_s: float = 0.0) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.wait_s = wait_s


ATTEMPTS = 5  # in a row without progress
LEAST_GAIN = 64 << 10  # bytes of an attempt that broke off, for which it was not in vain
_FIRST_S, _LONGEST_S = 0.5, 120.0
_INTERVAL_S = 5.0
_MOST = 40  # attempts at one transfer, with progress or without


class Retries:
    """The attempts at one transfer: a bounded number, with longer and longer waits between them.

    `wait` sleeps for a number of seconds, and `tell` gets a line for each wait. A server that asks
    for more than two minutes is not waited for.
    """

    def __init__(
        self,
        wait: Callable[[float], object] = time.sleep,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._wait, self._tell = wait, tell
        self._futile = self._total = 0

    def wait(self, transient: Transient, *, gained: int = 0) -> None:
        """Wait until the next attempt; raise the failure after the last one.

        Attempts are counted from one again where the last one `gained` enough bytes.
        """
        self._futile = 1 if gained >= LEAST_GAIN else self._futile + 1
        self._total += 1
        is_last = self._futile >= ATTEMPTS or self._total >= _MOST or transient.wait_s > _LONGEST_S
        if is_last:
            raise transient.failure from transient.__cause__
        wait_s = max(_FIRST_S * 2 ** (self._futile - 1), transient.wait_s)
        again = f"attempt {self._futile + 1} of {ATTEMPTS} in {wait_s:g} s"
        self._tell(f"{transient.failure.args[0]}; {again}")
        self._wait(wait_s)


class ThrottledListener:
    """A listener that passes on one message in five seconds, for requests that wait alike."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell, self._lock = tell, threading.Lock()
        self._next = 0.0

    def __call__(self, text: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now < self._next:
                return
            self._next = now + _INTERVAL_S
        self._tell(text)


class Sleep:
    """Sleeps that `stop` ends: then they raise `Interrupted`, and so does `check`."""

    def __init__(self) -> None:
        self._stopping = threading.Event()

    def __call__(self, seconds: float) -> None:
        self._stopping.wait(seconds)
        self.check()

    @property
    def is_ended(self) -> bool:
        """Return whether `stop` was called."""
        return self._stopping.is_set()

    def check(self) -> None:
        """Raise `Interrupted` after `stop`."""
        if self.is_ended:
            raise Interrupted("interrupted")

    def stop(self) -> None:
        """End all sleeps, and the transfers of other threads at their next chunk."""
        self._stopping.set()
