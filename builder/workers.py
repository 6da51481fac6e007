"""Forked processes of this very program, for work that threads would wait at Python's lock for.

They are forked before any thread begins. One whose pipe is closed, also by the end of the program,
stops as soon as its work looks whether it is to. Where there are none, on a machine of one core for
one, whoever asks does the work.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from builder.errors import BuildImagesError, Interrupted, Refused

_POLL_S, _END_S = 0.1, 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Is given words, and what raises when it is to end.
Work = Callable[[Sequence[str], Callable[[], object]], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Worker:
    """A process, what it is asked with, and what it answers with."""

    process: int
    asks: IO[str]
    answers: IO[str]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.asks.close()
            self.answers.close()


class Workers:
    """A few processes, each of which does one thing at a time."""

    def __init__(self) -> None:
        self.all: list[_Worker] = []
        self._living: list[_Worker] = []
        self._ended = False
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    def add(self, worker: _Worker) -> None:
        """Have one more."""
        self.all.append(worker)
        self._living.append(worker)
        self._idle.put(worker)

    def do(self, words: Sequence[str], check: Callable[[], object]) -> bool:
        """Have the work done; false if whoever asks is to do it, and to find what is in its way.

        `check` is called meanwhile. Raises what it does, and `Refused` as the work did.
        """
        worker = self._taken(check)
        if worker is None:
            return False
        answer: dict[str, Any] = {}
        try:
            worker.asks.write(json.dumps(words) + "\n")
            worker.asks.flush()
            while not select.select([worker.answers], [], [], _POLL_S)[0]:
                check()
            answer = json.loads(worker.answers.readline())
        except (OSError, ValueError):  # it is not there any more
            pass
        finally:
            if answer:
                self._idle.put(worker)
            else:
                self._living.remove(worker)
                worker.close()
        if self._ended:
            raise Interrupted("the work has ended")
        if refused := answer.get("refused"):
            raise Refused(refused[0], hint=refused[1])
        return "done" in answer

    def _taken(self, check: Callable[[], object]) -> _Worker | None:
        while self._living:
            with contextlib.suppress(queue.Empty):
                return self._idle.get(timeout=_POLL_S)
            check()
        return None

    def end(self) -> None:
        """Let all of them end; who does not within a second is killed, which harms nothing."""
        self._ended = True
        for one in self.all:
            one.close()
        until = time.monotonic() + _END_S
        for one in self.all:
            with contextlib.suppress(ChildProcessError):
                while not os.waitpid(one.process, os.WNOHANG)[0]:
                    if time.monotonic() > until:
                        os.kill(one.process, signal.SIGKILL)
                        os.waitpid(one.process, 0)
                        break
                    time.sleep(0.005)


@contextlib.contextmanager
def workers(work: Work, most: int) -> Iterator[Workers]:
    """As many as there are cores, at most `most`; none beside threads: a fork would stop them."""
    some = Workers()
    cores = len(os.sched_getaffinity(0))
    try:
        if cores > 1 and threading.active_count() == 1:
            with contextlib.suppress(OSError), _undisturbed():  # a limit: those that there are do
                for _ in range(min(cores, most)):
                    some.add(_forked(work, some.all))
        yield some
    finally:
        some.end()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No signal comes between a fork and what each side does about it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forked(work: Work, others: list[_Worker]) -> _Worker:
    asked, asks = os.pipe()
    answers, answered = os.pipe()
    try:
        process = os.fork()
    except OSError:
        for one in (asked, asks, answers, answered):
            os.close(one)
        raise
    if not process:
        try:
            for other in others:  # else they would not see their pipes close
                os.close(other.asks.fileno())
                os.close(other.answers.fileno())
            os.close(asks)
            os.close(answers)
            _serve(work, asked, answered)
        finally:
            os._exit(0)
    os.close(asked)
    os.close(answered)
    return _Worker(process=process, asks=os.fdopen(asks, "w"), answers=os.fdopen(answers))


def _serve(work: Work, asked: int, answered: int) -> None:
    """What a worker does, all its life; Ctrl-C is for the program that it belongs to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def check() -> None:
        if select.select([asked], [], [], 0)[0]:  # nothing is asked meanwhile: it was closed
            raise Interrupted("the work has ended")

    with os.fdopen(asked) as questions, os.fdopen(answered, "w") as answers:
        while question := questions.readline():
            answer = _answer(work, json.loads(question), check)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def _answer(work: Work, words: Sequence[str], check: Callable[[], object]) -> dict[str, object]:
    try:
        work(words, check)
    except Refused as error:
        return {"refused": [error.args[0], error.hint]}
    except (BuildImagesError, OSError) as error:
        return {"failed": str(error)}
    return {"done": True}
