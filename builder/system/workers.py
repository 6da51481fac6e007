"""Forked processes of this very program, for work that threads would wait at Python's lock for.

They are forked before any thread begins. Where there are none, on a machine of one core for one,
or where one of them died, the caller does the work.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor, wait

from builder.model.errors import Interrupted, Refused

_POLL_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SET_DEATH_SIGNAL = 1  # prctl(2), PR_SET_PDEATHSIG
# Gets words, and a function that raises when the work is to end.
Work = Callable[[Sequence[str], Callable[[], object]], object]


class Workers:
    """A few processes, each of which does one thing at a time; none without a pool."""

    def __init__(self, work: Work, pool: ProcessPoolExecutor | None = None) -> None:
        self._work, self._pool = work, pool
        self._ended = threading.Event()
        self.processes = multiprocessing.active_children() if pool else []

    def do(self, words: Sequence[str], check: Callable[[], object]) -> bool:
        """Have the work done; False if the caller is to do it, and to find what is in its way.

        `check` is called meanwhile, and may raise to leave the work. Raises `Refused` as the work
        did, and `Interrupted` once all of it has ended.
        """
        if self._pool is None:
            return False
        try:
            future = self._pool.submit(_attempt, self._work, list(words))
            while not wait([future], timeout=_POLL_S).done:
                check()
            answer = future.result()
        except (RuntimeError, CancelledError) as error:  # one of them died, or all have ended
            if self._ended.is_set():
                raise Interrupted("the work has ended") from error
            return False
        if isinstance(answer, tuple):
            raise Refused(answer[0], hint=answer[1])
        return answer

    def end(self) -> None:
        """Kill all of them, which harms nothing: nobody waits for what they work on any more."""
        self._ended.set()
        for process in self.processes:
            process.kill()
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def workers(work: Work, most: int) -> Iterator[Workers]:
    """Start one for each core, at most `most`; none beside threads: a fork would stop them."""
    cores = len(os.sched_getaffinity(0))
    started = Workers(work)
    try:
        if cores > 1 and threading.active_count() == 1:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                started = _forked(work, min(cores, most))
            finally:  # an interrupt comes here: never halfway, when nothing would end them
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield started
    finally:
        started.end()


def _forked(work: Work, number: int) -> Workers:
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(number, mp_context=context, initializer=_begin)
    try:
        pool.submit(os.getpid)  # forks all of them
    except (OSError, RuntimeError):  # a limit of processes, or of threads
        for process in multiprocessing.active_children():
            process.kill()  # else the program would wait for them at its end
        return Workers(work)
    return Workers(work, pool)


def _begin() -> None:
    """Leave Ctrl-C to the program that this process belongs to, and end with it."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _attempt(work: Work, words: Sequence[str]) -> bool | tuple[str, str]:
    """Return whether the work was done, or the text and the hint of a refusal."""
    try:
        work(words, lambda: None)
    except Refused as error:
        return error.args[0], error.hint
    except Exception:  # the caller meets it, too
        return False
    return True
