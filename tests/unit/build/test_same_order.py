"""On one machine, heaps and counters give the same order as a scan of all tasks."""

from __future__ import annotations

import random

import pytest
from scanning_schedule import ScanningSchedule

from builder.build.schedule import Attempt, Schedule
from builder.build.tasks import Task, TaskLimits
from builder.build.workers import requirement_of, workers_here

KINDS = ("base", "stage", "image", "pack", "verify")


def some_tasks(chance: random.Random, number: int) -> list[Task]:
    """Any graph: also groups whose tasks are ready together, and tasks without needs."""
    tasks: list[Task] = []
    for index in range(number):
        earlier = [task.name for task in tasks]
        few = chance.sample(earlier, min(len(earlier), chance.choice((0, 1, 1, 2, 3))))
        split = chance.randint(0, len(few)) if chance.random() < 0.3 else len(few)
        kind, arch = chance.choice(KINDS), chance.choice(("x86_64", "ppc64le"))
        tasks.append(
            Task(
                name=f"{chance.randrange(10)} {index}",
                kind=kind,
                requires=requirement_of(kind, arch, gpus=chance.choice((0, 0, 1))),
                work=lambda: None,
                needs=tuple(few[:split]),
                after=tuple(few[split:]),
                group=chance.choice(("", "", "a", "b", "c", "d")),
                emulated=chance.random() < 0.3,
                seconds=chance.randint(1, 5),
                memory=chance.choice((0, 1, 1, 2, 9)),
                disk=chance.choice((0, 1, 1, 2, 9)),
            )
        )
    return tasks


def some_limits(chance: random.Random) -> TaskLimits:
    return TaskLimits(
        tasks=chance.randint(1, 6),
        builds=chance.randint(1, 5),
        emulated=chance.randint(1, 3),
        groups=chance.randint(1, 4),
        memory=chance.choice((0, 2, 4, 8)),
    )


@pytest.mark.parametrize("seed", range(300))
def test_the_order_is_that_of_a_scan(seed: int) -> None:
    chance = random.Random(seed)
    tasks, limits = some_tasks(chance, chance.randint(1, 40)), some_limits(chance)
    scan = ScanningSchedule(tasks, limits)
    schedule = Schedule(tasks, limits, workers=workers_here(limits.tasks))
    attempts: dict[str, Attempt] = {}
    while not scan.is_over:
        disk = chance.choice((0, 0, 3, 8))
        started = schedule.start(free_disk=disk)
        attempts.update({attempt.name: attempt for attempt in started})
        expected = [task.name for task in scan.start(free_disk=disk)]
        assert [attempt.name for attempt in started] == expected
        name = chance.choice(sorted(attempts))
        attempt = attempts.pop(name)
        if chance.random() < 0.15:
            dropped = scan.failed(name)
            assert schedule.failed(attempt) == dropped
        else:
            scan.done(name)
            assert schedule.done(attempt)
    assert schedule.is_over
