"""Forked processes of this very program, for work that threads would wait at Python's lock for.

They are forked before any thread begins. One whose pipe is closed, also by the end of the program,
stops as soon as its work checks whether it is to. Where there are none, on a machine of one core
for one, the caller does the work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection

from builder.model.errors import BuildImagesError, Interrupted, Refused

_POLL_S, _END_S = 0.1, 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FORK = multiprocessing.get_context("fork")
# Gets words, and a function that raises when the work is to end.
Work = Callable[[Sequence[str], Callable[[], object]], object]


class _Worker:
    """A process, and the pipe for words to it and its answer: done or not, or a refusal."""

    def __init__(self, work: Work, others: Sequence[_Worker]) -> None:
        self.pipe, end = _FORK.Pipe()
        # The process closes its copies of these, else it would not see them close here.
        asking = [self.pipe, *(other.pipe for other in others)]
        self.process = _FORK.Process(target=_serve, args=(work, end, asking), daemon=True)
        self.process.start()
        end.close()


class Workers:
    """A few processes, each of which does one thing at a time."""

    def __init__(self) -> None:
        self.all: list[_Worker] = []
        self._living: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._ended = threading.Event()

    def add(self, work: Work) -> None:
        """Start one more."""
        worker = _Worker(work, self.all)
        self.all.append(worker)
        self._living.append(worker)
        self._idle.put(worker)

    def do(self, words: Sequence[str], check: Callable[[], object]) -> bool:
        """Have the work done; False if the caller is to do it, and to find what is in its way.

        `check` is called meanwhile, and may raise to leave the work. Raises `Refused` as the work
        did, and `Interrupted` once all of it has ended.
        """
        worker = self._taken(check)
        if worker is None:
            return False
        try:
            worker.pipe.send(list(words))
            while not worker.pipe.poll(_POLL_S):
                self._check(check)
            answer = worker.pipe.recv()
        except (OSError, EOFError):  # it is gone
            self._lose(worker)
            self._check(check)
            return False
        except BaseException:
            self._lose(worker)
            raise
        self._idle.put(worker)
        if isinstance(answer, tuple):
            raise Refused(answer[0], hint=answer[1])
        return bool(answer)

    def _check(self, check: Callable[[], object]) -> None:
        if self._ended.is_set():
            raise Interrupted("the work has ended")
        check()

    def _lose(self, worker: _Worker) -> None:
        self._living.remove(worker)
        worker.pipe.close()

    def _taken(self, check: Callable[[], object]) -> _Worker | None:
        while self._living:
            with contextlib.suppress(queue.Empty):
                return self._idle.get(timeout=_POLL_S)
            self._check(check)
        return None

    def end(self) -> None:
        """End all of them; one that does not end within a second is killed, which harms nothing."""
        self._ended.set()
        for worker in self.all:
            worker.pipe.close()
        until = time.monotonic() + _END_S
        for worker in self.all:
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.process.kill()
            worker.process.join()


@contextlib.contextmanager
def workers(work: Work, most: int) -> Iterator[Workers]:
    """Start one for each core, at most `most`; none beside threads: a fork would stop them."""
    pool = Workers()
    cores = len(os.sched_getaffinity(0))
    try:
        if cores > 1 and threading.active_count() == 1:
            with contextlib.suppress(OSError), _undisturbed():  # a limit: some are enough
                for _ in range(min(cores, most)):
                    pool.add(work)
        yield pool
    finally:
        pool.end()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no signal come between a fork and what each side does about it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(work: Work, pipe: Connection, asking: Sequence[Connection]) -> None:
    """Do what a worker does all its life; Ctrl-C is for the program that it belongs to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    for other_end in asking:
        other_end.close()

    def check() -> None:
        if pipe.poll():  # nothing else is asked meanwhile: it was closed
            raise Interrupted("the work has ended")

    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            words = pipe.recv()
            answer: object = True
            try:
                work(words, check)
            except Refused as error:
                answer = (error.args[0], error.hint)
            except (BuildImagesError, OSError):
                answer = False
            pipe.send(answer)
