"""Running the tasks of a schedule: `run_all`, and the executors that carry tasks to workers.

An executor starts attempts where the schedule puts them, and reports what happens to them. It
plans nothing. `ThreadExecutor` runs tasks in threads of this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Protocol

from builder.build.schedule import Attempt, Schedule
from builder.build.tasks import Task
from builder.build.workers import Worker, workers_here
from builder.model.errors import BuildImagesError, Interrupted, TemporaryFailure
from builder.system.terminal import interruptions

_POLL_S = 0.5  # how often free disk space is looked at while nothing happens
_SAY_S = 10.0  # until it is said that no task can run
PATIENCE_S = 900.0  # for workers to join while no task can run


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnded:
    """An attempt ended, and its worker is free: with a result, or with an error.

    After a `TemporaryFailure` the task is tried again.
    """

    attempt: Attempt
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerJoined:
    """A worker takes tasks from now on."""

    worker: Worker


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLost:
    """A worker, by name, takes no more tasks; its task, if any, is given up.

    The loss is `explained` if neither the task nor the machine can be its reason: preemption, the
    end of the worker's time, a worker that was asked to end. `reason` is an error for which the
    task may succeed elsewhere, such as a full disk; its worker joins again. The machine is `sound`
    if the reason says nothing against it.
    """

    worker: str
    explained: bool = False
    reason: str = ""
    sound: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorFailed:
    """The executor can carry no more tasks; the error ends the run."""

    error: BuildImagesError


Event = AttemptEnded | WorkerJoined | WorkerLost | ExecutorFailed | None  # None: an interruption

# Called in the main thread when a task ends: with its error, and the tasks dropped because of it.
OnEnd = Callable[[Task, BaseException | None, Sequence[Task]], None]


class Executor(Protocol):
    """Carries tasks to workers. All methods are called in the main thread."""

    @property
    def events(self) -> SimpleQueue[Event]:
        """The events of attempts and workers; a signal handler may add one: `put` is reentrant."""

    def capacity(self) -> Sequence[Worker]:
        """Return the workers at the start; others join by an event."""

    def start(self, task: Task, attempt: Attempt) -> None:
        """Start an attempt on its worker, which is free; report a worker that is gone as lost."""

    def cancel(self, attempt: Attempt) -> None:
        """Ask an attempt to end, since its result is not needed; it is reported when it ended."""

    def accept(self, attempt: Attempt) -> None:
        """Keep the result of an attempt, which counts; an error becomes that of its task.

        After a `TemporaryFailure` the result does not count, and the task is tried again.
        """

    def stop(self) -> None:
        """End all attempts, after an interruption or an error, and wait until they ended."""

    def close(self) -> None:
        """Release what the executor holds, after the last task ended."""


class ThreadExecutor:
    """Runs tasks in threads of this process. `stop` has to end what runs in them."""

    def __init__(self, *, threads: int, stop: Callable[[], None]) -> None:
        self.events: SimpleQueue[Event] = SimpleQueue()
        self._workers = workers_here(threads)
        self._threads = ThreadPoolExecutor(max_workers=threads)
        self._stop = stop

    def capacity(self) -> Sequence[Worker]:
        return self._workers

    def start(self, task: Task, attempt: Attempt) -> None:
        """Run a task in a free thread."""

        def report(future: Future[object]) -> None:
            if not future.cancelled():
                self.events.put(AttemptEnded(attempt=attempt, error=future.exception()))

        self._threads.submit(task.work).add_done_callback(report)

    def cancel(self, attempt: Attempt) -> None:
        """Do nothing: a thread ends with its task."""

    def accept(self, attempt: Attempt) -> None:
        """Do nothing: the task has kept its result."""

    def stop(self) -> None:
        """End all running tasks, and wait for their threads."""
        self._stop()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """Wait for the threads."""
        self._threads.shutdown()


def run_all(
    schedule: Schedule,
    executor: Executor,
    *,
    on_end: OnEnd,
    say: Callable[[str], object] = lambda _: None,
    free_disk: Callable[[], int] = lambda: 0,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run all tasks of a schedule; if one fails, only the tasks that need it are dropped.

    On Ctrl-C, and when a task raises `Interrupted`, the running tasks are ended. Tasks that no
    worker fits fail when nothing else runs and no worker joined for `PATIENCE_S`; `say` is told
    which workers they wait for. Pauses before a task is tried again are by the `clock`, in seconds.
    """
    for worker in executor.capacity():
        schedule.join(worker)
    with interruptions(lambda: executor.events.put(None)):
        try:
            _run(schedule, executor, on_end, say, free_disk, clock)
        except BaseException:
            executor.stop()
            raise
        executor.close()


def _run(
    schedule: Schedule,
    executor: Executor,
    on_end: OnEnd,
    say: Callable[[str], object],
    free_disk: Callable[[], int],
    clock: Callable[[], float],
) -> None:
    waited_s = 0.0  # while no task could run
    while not schedule.is_over:
        schedule.now = clock()
        for attempt in schedule.start(free_disk=free_disk()):
            executor.start(schedule.task(attempt.name), attempt)
        try:
            event = executor.events.get(timeout=_POLL_S)
            schedule.now = clock()
            _settle(schedule, executor, event, on_end)
            waited_s = 0.0
        except Empty:
            waited_s = waited_s + _POLL_S if schedule.is_idle else 0.0
        if waited_s == _SAY_S and (missing := schedule.missing_workers()):
            limit = f"waiting up to {PATIENCE_S / 60:.0f} minutes"
            say("\n".join(f"{limit} for a {worker}" for worker in missing))
        if waited_s >= PATIENCE_S:
            for failure in schedule.abandon():
                on_end(failure.task, failure.error, failure.dropped)


def _settle(schedule: Schedule, executor: Executor, event: Event, on_end: OnEnd) -> None:
    match event:
        case None:
            raise KeyboardInterrupt
        case ExecutorFailed():
            raise event.error
        case WorkerJoined():
            schedule.join(event.worker)
        case WorkerLost():
            failure = schedule.lost(
                event.worker, explained=event.explained, reason=event.reason, sound=event.sound
            )
            if failure:
                on_end(failure.task, failure.error, failure.dropped)
        case AttemptEnded(error=None):
            _settle_result(schedule, executor, event, on_end)
        case AttemptEnded():
            _settle_error(schedule, event, on_end)


def _settle_result(
    schedule: Schedule, executor: Executor, event: AttemptEnded, on_end: OnEnd
) -> None:
    attempt, error = event.attempt, None
    current = schedule.current(attempt.name)
    if schedule.accepts(attempt):
        try:
            executor.accept(attempt)
        except TemporaryFailure as failure:
            _settle_error(schedule, replace(event, error=failure), on_end)
            return
        except (BuildImagesError, OSError) as failure:
            error = failure
    if schedule.done(attempt):
        if current and current != attempt:
            executor.cancel(current)
        on_end(schedule.task(attempt.name), error, ())


def _settle_error(schedule: Schedule, event: AttemptEnded, on_end: OnEnd) -> None:
    attempt, error = event.attempt, event.error
    if schedule.current(attempt.name) != attempt:  # given up
        schedule.failed(attempt)
    elif isinstance(error, Interrupted) or (error and not isinstance(error, Exception)):
        raise error
    elif not (isinstance(error, TemporaryFailure) and schedule.retry(attempt)):
        on_end(schedule.task(attempt.name), error, schedule.failed(attempt))
