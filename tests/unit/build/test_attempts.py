"""Lost workers: tasks that run again, what is blamed, and results that come too late."""

from __future__ import annotations

import pytest
from test_placement import GPU, POWER, X86, placed, task, worker

from builder.build.schedule import PAUSES_S, Attempt, Schedule
from builder.build.tasks import Task
from builder.build.workers import Worker
from builder.model.errors import MissingPrerequisite, StepFailed

CHAIN = [task("image a"), task("pack a", "x86_64", "image a"), task("verify a", "x86_64", "pack a")]


def machines(number: int, *, slots: int = 1) -> list[Worker]:
    return [
        worker(f"{machine}{slot}", X86, machine)
        for machine in "ABCDEFGH"[:number]
        for slot in range(slots)
    ]


def only(attempts: list[Attempt]) -> Attempt:
    (attempt,) = attempts
    return attempt


def test_a_lost_task_runs_elsewhere() -> None:
    schedule = Schedule([task("stage a")], workers=machines(2))
    first = only(schedule.start())
    assert schedule.lost(first.worker.name) is None
    assert schedule.current("stage a") is None
    schedule.join(worker("A again", X86, "A"))
    second = only(schedule.start())
    assert (first.number, second.number, second.worker.machine) == (1, 2, "B")
    assert schedule.done(second)
    assert schedule.is_over


def test_it_runs_on_the_same_machine_if_no_other_fits() -> None:
    schedule = Schedule(
        [task("stage a", "ppc64le")], workers=[worker("p", POWER), worker("g", GPU)]
    )
    schedule.start()
    schedule.lost("p")
    assert schedule.start() == []
    schedule.join(worker("p2", POWER, "of p"))
    assert only(schedule.start()).worker.name == "p2"


def test_three_losses_on_different_machines_blame_the_task() -> None:
    tasks = [task("stage a", seconds=9), task("image b", "x86_64", "stage a"), task("stage c")]
    schedule = Schedule(tasks, workers=machines(4))
    started = {attempt.name: attempt for attempt in schedule.start()}
    for _ in range(2):
        assert schedule.lost(started["stage a"].worker.name) is None
        started |= {attempt.name: attempt for attempt in schedule.start()}
    failure = schedule.lost(started["stage a"].worker.name)
    assert failure is not None
    assert (failure.task.name, [other.name for other in failure.dropped]) == (
        "stage a",
        ["image b"],
    )
    assert isinstance(failure.error, StepFailed)
    assert failure.error.message == "stage a: its worker was lost 3 times, on A, C, D"
    assert schedule.aside == {}
    assert schedule.done(started["stage c"])
    assert schedule.is_over


def test_three_losses_are_enough_where_no_other_machine_fits() -> None:
    schedule = Schedule([task("stage a")], workers=machines(1))
    for number in range(2):
        assert schedule.lost(only(schedule.start()).worker.name) is None
        schedule.join(worker(f"A again {number}", X86, "A"))
    failure = schedule.lost(only(schedule.start()).worker.name)
    assert failure is not None
    assert "lost 3 times, on A" in str(failure.error)


def test_preemption_costs_nothing() -> None:
    schedule = Schedule([task("stage a")], workers=machines(1))
    for number in range(9):
        attempt = only(schedule.start())
        assert attempt.number == number + 1
        assert schedule.lost(attempt.worker.name, explained=True) is None
        schedule.join(worker(f"A again {number}", X86, "A"))
    assert schedule.done(only(schedule.start()))
    assert schedule.aside == {}


def test_a_machine_that_loses_three_tasks_is_put_aside() -> None:
    tasks = [task(f"stage {name}") for name in "abcd"]
    schedule = Schedule(tasks, workers=machines(1, slots=4))
    attempts = schedule.start()
    for attempt in attempts[:3]:
        assert schedule.lost(attempt.worker.name) is None
    assert schedule.aside == {"A": ("stage a", "stage b", "stage c")}
    assert schedule.done(attempts[3]), "what runs there may end"
    schedule.join(worker("A again", X86, "A"))
    assert schedule.start() == []
    schedule.join(worker("B", X86, "B"))
    assert placed(schedule.start()) == {"stage a": "B"}


def test_a_machine_that_completes_tasks_is_not_put_aside() -> None:
    """Else each machine of a long run would be, in the end."""
    tasks = [task(f"stage {number}") for number in range(8)]
    schedule = Schedule(tasks, workers=machines(1, slots=2))
    for number in range(3):
        for attempt in schedule.start()[:1]:
            schedule.lost(attempt.worker.name)
        schedule.join(worker(f"A again {number}", X86, "A"))
        schedule.done(schedule.start()[0])
    assert schedule.aside == {}


def test_the_same_task_puts_no_machine_aside() -> None:
    schedule = Schedule([task("stage a")], workers=[])
    for number in range(3):
        schedule.join(worker(f"A {number}", X86, "A"))
        schedule.lost(only(schedule.start()).worker.name)
    assert schedule.aside == {}


def test_a_machine_that_lacks_what_images_ask_for_is_not_put_aside() -> None:
    tasks = [task(f"stage {name}") for name in "abcde"]
    schedule = Schedule(tasks, workers=machines(1, slots=4))
    for attempt in schedule.start():
        assert schedule.lost(attempt.worker.name, reason="no login", sound=True) is None
    assert schedule.aside == {}
    schedule.join(worker("A again", X86, "A"))
    schedule.join(worker("B", X86, "B"))
    assert placed(schedule.start()) == {"stage a": "B", "stage e": "A again"}


def test_packing_leaves_a_machine_that_was_put_aside() -> None:
    tasks = [task("image a", seconds=9), task("pack a", "x86_64", "image a")]
    tasks += [task(f"stage {name}") for name in "bcd"]
    schedule = Schedule(tasks, workers=machines(1, slots=4))
    image, *others = schedule.start()
    schedule.done(image)
    for attempt in others:
        schedule.lost(attempt.worker.name)
    schedule.join(worker("B", X86, "B"))
    assert [*schedule.aside] == ["A"]
    assert placed(schedule.start()) == {"pack a": "B"}


def test_packing_that_waits_for_a_machine_goes_elsewhere_when_that_is_lost() -> None:
    schedule = Schedule(CHAIN, workers=machines(2))
    image = only(schedule.start())
    schedule.done(image)
    schedule.lost(image.worker.name)
    assert placed(schedule.start()) == {"pack a": "B0"}


# ---- Results of attempts that were given up ----


def given_up(tasks: list[Task], name: str) -> tuple[Schedule, Attempt]:
    """A schedule on two machines, and the attempt of a task whose worker was lost."""
    schedule = Schedule(tasks, workers=machines(2))
    while True:
        attempt = only(schedule.start())
        if attempt.name == name:
            schedule.lost(attempt.worker.name)
            return schedule, attempt
        schedule.done(attempt)


@pytest.mark.parametrize("runs_again", [False, True])
@pytest.mark.parametrize("name", ["image a", "pack a"])
def test_a_late_build_is_accepted(name: str, runs_again: bool) -> None:
    schedule, attempt = given_up(CHAIN, name)
    again = only(schedule.start()) if runs_again else None
    assert schedule.done(attempt)
    assert not schedule.done(attempt), "once"
    if again:
        assert schedule.start() == [], "its worker is busy until it ends"
        assert not schedule.done(again)
    following = only(schedule.start())
    assert following.name == {"image a": "pack a", "pack a": "verify a"}[name]
    assert following.worker.machine == "B"


@pytest.mark.parametrize("runs_again", [False, True])
def test_late_evidence_is_refused(runs_again: bool) -> None:
    schedule, attempt = given_up(CHAIN, "verify a")
    again = only(schedule.start()) if runs_again else None
    assert not schedule.done(attempt)
    assert not schedule.is_over
    again = again or only(schedule.start())
    assert schedule.done(again)
    assert not schedule.done(attempt)
    assert not schedule.done(again)
    assert schedule.is_over


def test_a_late_failure_changes_nothing() -> None:
    schedule, attempt = given_up(CHAIN, "image a")
    assert schedule.failed(attempt) == []
    assert schedule.retry(attempt)
    again = only(schedule.start())
    assert schedule.failed(attempt) == []
    assert schedule.current("image a") == again
    assert schedule.done(again)


def test_a_late_result_of_a_failed_task_is_not_accepted() -> None:
    schedule, attempt = given_up(CHAIN, "image a")
    again = only(schedule.start())
    assert [other.name for other in schedule.failed(again)] == ["pack a", "verify a"]
    assert not schedule.done(attempt)
    assert not schedule.done(attempt)
    assert schedule.is_over


def test_the_loss_of_a_worker_whose_result_came_otherwise() -> None:
    schedule, attempt = given_up(CHAIN, "image a")
    again = only(schedule.start())
    assert schedule.done(attempt)
    assert schedule.lost(again.worker.name) is None
    schedule.join(worker("C", X86, "C"))
    assert only(schedule.start()).name == "pack a", "the image is not built again"


def test_a_store_without_an_answer_fails_a_task_in_the_end() -> None:
    schedule = Schedule([task("stage a")], workers=machines(1))
    for number, pause_s in enumerate(PAUSES_S):
        attempt = only(schedule.start())
        assert attempt.number == number + 1
        assert schedule.retry(attempt)
        assert not schedule.is_idle
        schedule.now += pause_s - 0.1
        assert schedule.start() == []
        schedule.now += 0.1
    last = only(schedule.start())
    assert not schedule.retry(last)
    assert schedule.current("stage a") == last
    assert schedule.failed(last) == []
    assert schedule.is_over


def test_tasks_that_no_worker_fits_are_abandoned_with_what_needs_them() -> None:
    tasks = [*CHAIN[:1], task("image p", "ppc64le"), task("pack p", "ppc64le", "image p")]
    schedule = Schedule(tasks, workers=[worker("g", GPU)])
    attempt = only(schedule.start())
    (failure,) = schedule.abandon()
    assert str(failure.error) == "image p: there is no worker for ppc64le"
    assert isinstance(failure.error, MissingPrerequisite)
    assert [other.name for other in failure.dropped] == ["pack p"]
    schedule.done(attempt)
    assert schedule.is_over


def test_the_reason_names_machines_that_were_put_aside() -> None:
    tasks = [task(f"stage {name}") for name in "abc"]
    schedule = Schedule(tasks, workers=machines(1, slots=3))
    for attempt in schedule.start():
        schedule.lost(attempt.worker.name)
    failures = schedule.abandon()
    assert [failure.task.name for failure in failures] == ["stage a", "stage b", "stage c"]
    assert failures[0].error.hint == (
        "no more used after losses: A (lost stage a, stage b, stage c)"
    )
    assert schedule.is_over
