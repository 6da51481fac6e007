"""What `run_all` makes of events: lost workers, late results, retries, workers that never come."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import cast

import pytest
from test_placement import GPU, POWER, X86, task, worker

from builder.build.executor import (
    PATIENCE_S,
    AttemptEnded,
    Event,
    ExecutorFailed,
    ThreadExecutor,
    WorkerJoined,
    WorkerLost,
    run_all,
)
from builder.build.schedule import Attempt, Schedule
from builder.build.tasks import Task
from builder.build.workers import Worker, workers_here
from builder.model.errors import Interrupted, StepFailed, TemporaryFailure

ONE, TWO = worker("one", X86), worker("two", X86)


class Scripted:
    """An executor whose events are listed; in them, `Attempt`s are those of the schedule."""

    def __init__(self, workers: Sequence[Worker], events: Iterable[Event]) -> None:
        self._workers, self._script = workers, [*events]
        self.started: list[Attempt] = []
        self.cancelled: list[Attempt] = []
        self.accepted: list[Attempt] = []
        self.refuses = ""  # why a result cannot be kept
        self.is_away = False  # what keeps the first result
        self.waited_s = 0.0
        self.ends: list[str] = []

    @property
    def events(self) -> SimpleQueue[Event]:
        return cast("SimpleQueue[Event]", self)

    def capacity(self) -> Sequence[Worker]:
        return self._workers

    def start(self, task: Task, attempt: Attempt) -> None:
        assert task.name == attempt.name
        self.started.append(attempt)

    def cancel(self, attempt: Attempt) -> None:
        self.cancelled.append(attempt)

    def accept(self, attempt: Attempt) -> None:
        self.accepted.append(attempt)
        if self.is_away:
            self.is_away = False
            raise TemporaryFailure("the store does not answer")
        if self.refuses:
            raise StepFailed(self.refuses)

    def stop(self) -> None:
        self.ends.append("stopped")

    def close(self) -> None:
        self.ends.append("closed")

    def put(self, item: Event) -> None:
        self._script.append(item)

    def get(self, *, timeout: float) -> Event:
        event = self._script[0] if self._script else None
        is_early = isinstance(event, AttemptEnded) and event.attempt.number > self._number(event)
        if not self._script or is_early:
            self.waited_s += timeout
            raise Empty
        return self._script.pop(0)

    def _number(self, event: AttemptEnded) -> int:
        """The number of the newest attempt at the task of an event."""
        return max(each.number for each in self.started if each.name == event.attempt.name)


Ended = list[tuple[str, str, list[str]]]


def run(
    executor: Scripted, tasks: Sequence[Task], say: Callable[[str], object] = lambda _: None
) -> Ended:
    """Run tasks; for each that ended its name, its error, and what was dropped for it."""
    ended: Ended = []
    run_all(
        Schedule(tasks, workers=()),
        executor,
        on_end=lambda one, error, dropped: ended.append(
            (one.name, str(error), [other.name for other in dropped])
        ),
        say=say,
        clock=lambda: executor.waited_s,
    )
    return ended


def attempt(name: str, number: int, at: Worker) -> Attempt:
    return Attempt(name=name, number=number, worker=at)


def test_a_result_of_a_lost_worker_ends_the_second_attempt() -> None:
    first, second = attempt("image a", 1, ONE), attempt("image a", 2, TWO)
    executor = Scripted(
        [ONE, TWO],
        [
            WorkerLost(worker="one"),
            AttemptEnded(attempt=first),
            AttemptEnded(attempt=second, error=Interrupted("cancelled")),
            AttemptEnded(attempt=attempt("pack a", 1, TWO)),
        ],
    )
    tasks = [task("image a"), task("pack a", "x86_64", "image a")]
    assert run(executor, tasks) == [("image a", "None", []), ("pack a", "None", [])]
    assert executor.started == [first, second, attempt("pack a", 1, TWO)]
    assert executor.accepted == [first, attempt("pack a", 1, TWO)]
    assert (executor.cancelled, executor.ends) == ([second], ["closed"])


def test_late_evidence_ends_no_image() -> None:
    first, second = attempt("verify a", 1, ONE), attempt("verify a", 2, TWO)
    executor = Scripted(
        [ONE, TWO],
        [
            WorkerLost(worker="one"),
            *(AttemptEnded(attempt=late) for late in (first, second, second)),
        ],
    )
    assert run(executor, [task("verify a")]) == [("verify a", "None", [])]
    assert (executor.cancelled, executor.accepted) == ([], [second])


def test_a_result_that_cannot_be_kept_is_an_error_of_its_task() -> None:
    executor = Scripted([ONE], [AttemptEnded(attempt=attempt("verify a", 1, ONE))])
    executor.refuses = "the store does not give the image"
    [(name, error, dropped)] = run(executor, [task("verify a")])
    assert (name, dropped) == ("verify a", [])
    assert error == executor.refuses


def test_an_executor_that_fails_ends_the_run() -> None:
    executor = Scripted([ONE], [ExecutorFailed(error=StepFailed("the scheduler is gone"))])
    with pytest.raises(StepFailed, match="the scheduler is gone"):
        run(executor, [task("image a")])
    assert executor.ends == ["stopped"]


def test_a_task_that_no_machine_can_do_fails_for_the_reason_of_the_last() -> None:
    again = [
        event
        for number in range(1, 4)
        for event in (
            WorkerLost(worker="one", reason=f"no space left, {number}"),
            WorkerJoined(worker=ONE),
        )
    ]
    executor = Scripted([ONE], again)
    [(name, error, _)] = run(executor, [task("image a")])
    assert name == "image a"
    assert error.endswith("tried 3 times, on of one: no space left, 3")


def test_errors_of_attempts_that_were_given_up_change_nothing() -> None:
    first, second = attempt("verify a", 1, ONE), attempt("verify a", 2, TWO)
    executor = Scripted(
        [ONE, TWO],
        [
            WorkerLost(worker="one", explained=True),
            AttemptEnded(attempt=first, error=KeyboardInterrupt()),
            AttemptEnded(attempt=first, error=StepFailed("late")),
            AttemptEnded(attempt=second),
        ],
    )
    assert run(executor, [task("verify a")]) == [("verify a", "None", [])]


def test_a_task_is_tried_again_after_an_error_outside_of_it() -> None:
    """After pauses of 2, 4, 8, 16 and 32 s."""
    tries = [attempt("stage a", number, ONE) for number in range(1, 7)]
    error = TemporaryFailure("the store does not answer")
    executor = Scripted([ONE], [AttemptEnded(attempt=each, error=error) for each in tries])
    tasks = [task("stage a"), task("image b", "x86_64", "stage a")]
    assert run(executor, tasks) == [("stage a", str(error), ["image b"])]
    assert (executor.started, executor.waited_s) == (tries, 62.0)


def test_a_result_that_cannot_be_kept_now_is_made_again() -> None:
    tries = [attempt("verify a", number, ONE) for number in (1, 2)]
    executor = Scripted([ONE], [AttemptEnded(attempt=each) for each in tries])
    executor.is_away = True
    assert run(executor, [task("verify a")]) == [("verify a", "None", [])]
    assert (executor.started, executor.accepted, executor.waited_s) == (tries, tries, 2.0)


def test_other_tasks_run_while_one_waits_for_its_next_try() -> None:
    first, second = attempt("stage a", 1, ONE), attempt("stage a", 2, ONE)
    between = attempt("stage b", 1, ONE)
    away = TemporaryFailure("the store does not answer")
    events = [AttemptEnded(attempt=first, error=away), AttemptEnded(attempt=between)]
    executor = Scripted([ONE], [*events, AttemptEnded(attempt=second)])
    assert run(executor, [task("stage a"), task("stage b")]) == [
        ("stage b", "None", []),
        ("stage a", "None", []),
    ]
    assert executor.started == [first, between, second]


def test_a_task_to_blame_ends_with_what_needs_it() -> None:
    workers = [worker(name, X86) for name in "abc"]
    executor = Scripted(workers, [WorkerLost(worker=name) for name in "abc"])
    (ended,) = run(executor, [task("stage a"), task("image b", "x86_64", "stage a")])
    assert (ended[0], ended[2]) == ("stage a", ["image b"])
    assert "its worker was lost 3 times, on of a, of b, of c" in ended[1]


def test_workers_may_join_later() -> None:
    executor = Scripted(
        [], [WorkerJoined(worker=ONE), AttemptEnded(attempt=attempt("stage a", 1, ONE))]
    )
    assert run(executor, [task("stage a")]) == [("stage a", "None", [])]
    assert executor.waited_s == 0


def test_a_task_without_a_worker_fails_after_a_while() -> None:
    executor, said = Scripted([worker("g", GPU)], []), list[tuple[float, str]]()
    (ended,) = run(
        executor,
        [task("stage a", "ppc64le")],
        say=lambda text: said.append((executor.waited_s, text)),
    )
    assert ended[:2] == ("stage a", "stage a: there is no worker for ppc64le")
    assert executor.waited_s == PATIENCE_S
    assert said == [(10, "waiting up to 15 minutes for a worker for ppc64le")]


def test_no_task_fails_while_another_runs() -> None:
    class Slow(Scripted):
        def get(self, *, timeout: float) -> Event:
            self.waited_s += timeout
            if self.waited_s < 2 * PATIENCE_S:
                raise Empty
            return super().get(timeout=timeout)

    executor = Slow(
        [ONE],
        [
            AttemptEnded(attempt=attempt("stage b", 1, ONE)),
            WorkerJoined(worker=worker("p", POWER)),
            AttemptEnded(attempt=attempt("verify a", 1, worker("p", POWER))),
        ],
    )
    ended: list[str] = []
    schedule = Schedule([task("verify a", "ppc64le"), task("stage b")], workers=(), pools=[POWER])
    run_all(schedule, executor, on_end=lambda one, error, _: ended.append(f"{one.name} {error}"))
    assert ended == ["stage b None", "verify a None"]


@pytest.mark.parametrize("error", [Interrupted("interrupted"), SystemExit(), None])
def test_an_interruption_stops_the_executor(error: BaseException | None) -> None:
    ended = AttemptEnded(attempt=attempt("stage a", 1, ONE), error=error)
    executor = Scripted([ONE], [ended if error else None])
    with pytest.raises(type(error) if error else KeyboardInterrupt):
        run(executor, [task("stage a")])
    assert executor.ends == ["stopped"]


def test_threads_are_the_workers_of_this_machine() -> None:
    executor = ThreadExecutor(threads=2, stop=lambda: None)
    assert executor.capacity() == workers_here(2)
    failing = dataclasses.replace(task("stage a"), work=lambda: 1 // 0)
    at = executor.capacity()[0]
    executor.start(failing, attempt("stage a", 1, at))
    event = executor.events.get(timeout=10)
    assert isinstance(event, AttemptEnded)
    assert event.attempt == attempt("stage a", 1, at)
    assert isinstance(event.error, ZeroDivisionError)
    executor.cancel(event.attempt)
    executor.close()
