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
from typing import IO

from builder.model.errors import BuildImagesError, Interrupted, Refused

_POLL_S, _END_S = 0.1, 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Is given words, and what raises when it is to end.
Work = Callable[[Sequence[str], Callable[[], object]], object]


@dataclass(kw_only=True, slots=True, eq=False)
class _Worker:
    """A process, what it is asked with and answers with; it `owes` an answer nobody took yet."""

    process: int
    asks: IO[str]
    answers: IO[str]
    owes: bool = False

    def ask(self, words: Sequence[str]) -> None:
        self._tell(words)
        self.owes = True

    def answer(self, check: Callable[[], object]) -> dict[str, object]:
        while not _is_ready(self.answers.fileno(), _POLL_S):
            check()
        found = json.loads(self.answers.readline())
        self.owes = False
        return dict(found)

    def stop(self) -> None:
        """Have it leave off what it does, if it does anything: who asks next takes the answer."""
        if self.owes:
            self._tell(None)

    def _tell(self, what: object) -> None:
        self.asks.write(json.dumps(what) + "\n")
        self.asks.flush()

    def close(self) -> None:
        for one in (self.asks, self.answers):
            with contextlib.suppress(OSError):
                one.close()


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
        if self._ended:
            raise Interrupted("the work has ended")
        if worker is None:
            return False
        answer: dict[str, object] = {}
        try:
            if worker.owes:
                worker.answer(check)
            worker.ask(words)
            answer = worker.answer(check)
        except (OSError, ValueError):  # it is not there any more
            self._lose(worker)
        except BaseException:
            self._stop(worker)
            raise
        else:
            self._idle.put(worker)
        if self._ended:
            raise Interrupted("the work has ended")
        if isinstance(refused := answer.get("refused"), list):
            raise Refused(str(refused[0]), hint=str(refused[1]))
        return "done" in answer

    def _lose(self, worker: _Worker) -> None:
        self._living.remove(worker)
        worker.close()

    def _stop(self, worker: _Worker) -> None:
        try:
            worker.stop()
        except (OSError, ValueError):
            self._lose(worker)
        else:
            self._idle.put(worker)

    def _taken(self, check: Callable[[], object]) -> _Worker | None:
        while self._living and not self._ended:
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
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forked(work: Work, others: list[_Worker]) -> _Worker:
    pipes: list[int] = []
    try:
        pipes += os.pipe()
        pipes += os.pipe()
        process = os.fork()
    except OSError:
        for one in pipes:
            os.close(one)
        raise
    asked, asks, answers, answered = pipes
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
        if _is_ready(asked, 0):  # nothing else is asked meanwhile: it was closed, or is to stop
            raise Interrupted("the work has ended")

    with os.fdopen(asked) as questions, os.fdopen(answered, "w") as answers:
        while question := questions.readline():
            if (words := json.loads(question)) is not None:  # else it has stopped by now
                answers.write(json.dumps(_answer(work, words, check)) + "\n")
                answers.flush()


def _is_ready(file: int, seconds: float) -> bool:
    """Return whether there is something to read, or nothing will be any more."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _answer(work: Work, words: Sequence[str], check: Callable[[], object]) -> dict[str, object]:
    try:
        work(words, check)
    except Refused as error:
        return {"refused": [error.args[0], error.hint]}
    except (BuildImagesError, OSError) as error:
        return {"failed": str(error)}
    return {"done": True}
