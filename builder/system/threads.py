"""Work in a few threads, or in forked processes of this program.

The threads give results in order, and do shared work only once. The processes are for work that
Python's global lock would serialize in threads. They are forked before any thread begins. If there
are none (as on a machine with one core), or one has died, the caller does the work.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, as_completed, wait
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from builder.model.errors import Interrupted
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

    After the first failure or Ctrl-C, no new work begins, `stop` is called to end the running work,
    and the failure is raised within a short time.
    """
    threads = Daemons(jobs)
    futures = [threads.begin(partial(work, item)) for item in items]
    try:
        for done in as_completed(futures):
            done.result()
    except BaseException:
        for future in futures:
            future.cancel()
        if stop:
            stop()
            wait([future for future in futures if future.running()], timeout=_END_S)
        raise
    return [future.result() for future in futures]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked(Generic[R]):
    taker: object
    future: Future[R]


class Coming(Generic[R]):
    """Named work that several takers request: done once, by a few threads, in order of requests.

    A failure is raised for the taker that asked first; any other taker then does the work itself.
    """

    def __init__(self, threads: int = AT_ONCE) -> None:
        self._threads = Daemons(threads)
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked[R]] = {}

    def ask(self, name: str, work: Callable[[], R], taker: object) -> _Asked[R]:
        """Begin the work, unless it is running or done."""
        with self._lock:
            if name not in self._asked:
                self._asked[name] = _Asked(taker=taker, future=self._threads.begin(work))
            return self._asked[name]

    def get(self, name: str, work: Callable[[], R], taker: object) -> R:
        """Return the result of the work, once it is done."""
        asked = self.ask(name, work, taker)
        wait([asked.future])
        has_failed = asked.future.cancelled() or asked.future.exception() is not None
        return work() if has_failed and asked.taker is not taker else asked.future.result()

    def forget(self, taker: object) -> None:
        """Cancel a taker's requests whose work has not begun."""
        with self._lock:
            for asked in self._asked.values():
                if asked.taker is taker:
                    asked.future.cancel()


_POLL_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SET_DEATH_SIGNAL = 1  # prctl(2), PR_SET_PDEATHSIG
# Takes arguments, and a function that raises to end the work.
Work = Callable[[Sequence[str], Callable[[], object]], object]


class Workers:
    """A few processes, each of which does one task at a time; none without a pool."""

    def __init__(self, work: Work, pool: ProcessPoolExecutor | None = None) -> None:
        self._work, self._pool = work, pool
        self._ended = threading.Event()
        self.processes = multiprocessing.active_children() if pool else []

    def begin(self, words: Sequence[str]) -> Future[bool] | None:
        """Begin the work in a process; None if there is no process."""
        with contextlib.suppress(RuntimeError):  # a process died, or `end` was called
            if self._pool:
                return self._pool.submit(_attempt, self._work, list(words))
        return None

    def finished(self, work: Future[bool] | None, check: Callable[[], object]) -> bool:
        """Wait for work that was begun; return False if the caller must do it, with its error.

        `check` is called meanwhile, and may raise to abandon the work. Raises `Interrupted` after
        `end`.
        """
        try:
            while work and not wait([work], timeout=_POLL_S).done:
                check()
            if work:
                return work.result()
        except (RuntimeError, CancelledError):  # a process died, or `end` was called
            pass
        if self._ended.is_set():
            raise Interrupted("the work has ended")
        return False

    def end(self) -> None:
        """Kill all processes; their results are no longer needed."""
        self._ended.set()
        for process in self.processes:
            process.kill()
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def workers(work: Work, number: int) -> Iterator[Workers]:
    """Fork that many processes; none for one core, or if threads run: a fork is unsafe then."""
    cores = len(os.sched_getaffinity(0))
    started = Workers(work)
    try:
        if cores > 1 and threading.active_count() == 1:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                started = _forked(work, number)
            finally:  # signals arrive only now, when `end` can reach every process
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield started
    finally:
        started.end()


def _forked(work: Work, number: int) -> Workers:
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(number, mp_context=context, initializer=_begin)
    try:
        pool.submit(os.getpid)  # forks all processes
    except (OSError, RuntimeError):  # a limit on processes or threads
        for process in multiprocessing.active_children():
            process.kill()  # else the program waits for them at its end
        return Workers(work)
    return Workers(work, pool)


def _begin() -> None:
    """Ignore Ctrl-C, which the parent process handles, and end with the parent."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _attempt(work: Work, words: Sequence[str]) -> bool:
    """Return whether the work was done."""
    try:
        work(words, lambda: None)
    except Exception:  # the caller repeats the work and meets the same error
        return False
    return True
