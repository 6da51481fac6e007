"""Which task comes next: dependencies, limits, the longest path, and what a failure stops."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from builder.build.executor import ThreadExecutor, run_all
from builder.build.schedule import Attempt, Schedule
from builder.build.tasks import Durations, Task, TaskLimits
from builder.build.workers import workers_here
from builder.model.errors import Interrupted
from builder.system.terminal import interruptions

ROOMY = TaskLimits(tasks=99, builds=99, emulated=99, groups=99)


def task(name: str, *needs: str, kind: str = "stage", **about: object) -> Task:
    made = Task(name=name, kind=kind, needs=needs, work=lambda: None)
    return dataclasses.replace(made, **about)  # type: ignore[arg-type]


def names(tasks: Sequence[Task | Attempt]) -> list[str]:
    return [one.name for one in tasks]


def running(schedule: Schedule, name: str) -> Attempt:
    attempt = schedule.current(name)
    assert attempt is not None
    return attempt


def limits(**changes: int) -> TaskLimits:
    return dataclasses.replace(ROOMY, **changes)


def scheduled(tasks: Sequence[Task], most: TaskLimits) -> Schedule:
    return Schedule(tasks, most, workers=workers_here(most.tasks))


def test_a_task_waits_for_all_that_it_needs() -> None:
    schedule = scheduled([task("a"), task("b"), task("c", "a", "b")], ROOMY)
    assert names(schedule.start()) == ["a", "b"]
    schedule.done(running(schedule, "a"))
    assert schedule.start() == []
    schedule.done(running(schedule, "b"))
    assert names(schedule.start()) == ["c"]
    assert not schedule.is_over
    schedule.done(running(schedule, "c"))
    assert schedule.is_over


def test_the_longest_path_comes_first() -> None:
    tasks = [
        task("short", seconds=50),
        task("first", seconds=1),
        task("second", "first", seconds=10),
        task("third", "second", seconds=60),
    ]
    schedule = scheduled(tasks, limits(builds=1))
    assert names(schedule.start()) == ["first"]
    schedule.done(running(schedule, "first"))
    assert names(schedule.start()) == ["second"]


def test_builds_have_a_limit_and_packing_goes_on_beside_them() -> None:
    tasks = [
        task("a", seconds=9),
        task("b", seconds=8),
        task("p", kind="pack"),
        task("q", kind="pack"),
    ]
    schedule = scheduled(tasks, limits(tasks=2, builds=1))
    assert names(schedule.start()) == ["a", "p"]
    schedule.done(running(schedule, "a"))
    assert names(schedule.start()) == ["b"]


@pytest.mark.parametrize(
    ("limit", "free_disk", "expected"),
    [
        ({}, 0, ["a", "b", "e"]),
        ({"emulated": 1}, 0, ["a", "e"]),
        ({"memory": 10}, 0, ["a"]),
        ({}, 10, ["a"]),
        ({"memory": 12}, 12, ["a", "b"]),
        ({"memory": 1}, 1, ["a"]),  # one task always starts
    ],
)
def test_emulation_memory_and_disk_have_limits(
    limit: dict[str, int], free_disk: int, expected: list[str]
) -> None:
    tasks = [task(name, memory=6, disk=6, emulated=name != "e") for name in "abe"]
    assert names(scheduled(tasks, limits(**limit)).start(free_disk=free_disk)) == expected


def test_free_disk_that_nobody_measured_is_no_limit() -> None:
    tasks = [task(name, disk=1 << 40) for name in "ab"]
    assert names(scheduled(tasks, ROOMY).start()) == ["a", "b"]


def test_so_many_images_are_open_at_once() -> None:
    tasks = [
        task("image a", kind="image", group="a", seconds=9),
        task("pack a", "image a", kind="pack", group="a"),
        task("image b", kind="image", group="b", seconds=5),
    ]
    schedule = scheduled(tasks, limits(groups=1))
    assert names(schedule.start()) == ["image a"]
    schedule.done(running(schedule, "image a"))
    assert names(schedule.start()) == ["pack a"]
    schedule.done(running(schedule, "pack a"))
    assert names(schedule.start()) == ["image b"]


def test_a_failure_stops_only_what_comes_after_it() -> None:
    tasks = [
        task("a"),
        task("b"),
        task("after a", "a", group="x"),
        task("later", "after a", group="x"),
        task("both", "b", "a"),
        task("after b", "b"),
    ]
    schedule = scheduled(tasks, ROOMY)
    schedule.start()
    assert sorted(names(schedule.failed(running(schedule, "a")))) == ["after a", "both", "later"]
    schedule.done(running(schedule, "b"))
    assert names(schedule.start()) == ["after b"]
    assert schedule.failed(running(schedule, "after b")) == [], "both is dropped once"
    assert schedule.is_over


def test_what_is_better_over_first_may_fail() -> None:
    tasks = [task("base"), task("parent", "base"), task("child", after=("parent",))]
    schedule = scheduled([*tasks, task("late", "child")], ROOMY)
    assert names(schedule.start()) == ["base"]
    assert names(schedule.failed(running(schedule, "base"))) == ["parent"]
    assert names(schedule.start()) == ["child"]
    schedule.done(running(schedule, "child"))
    assert names(schedule.start()) == ["late"]


def test_the_path_goes_through_what_is_better_over_first() -> None:
    tasks = [task("a", seconds=5), task("b", seconds=2), task("c", after=("b",), seconds=9)]
    assert names(scheduled(tasks, limits(builds=1)).start()) == ["b"]


def test_tasks_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"wait for each other: \['a', 'b'\]"):
        Schedule([task("a", "b"), task("b", "a"), task("c")], ROOMY)


Ended = list[tuple[str, str, list[str]]]


def run(
    tasks: Sequence[Task], *, threads: int = 4, stop: Callable[[], None] = lambda: None
) -> Ended:
    """Run tasks; for each that ended its name, its error, and what was dropped for it."""
    ended: Ended = []
    run_all(
        Schedule(tasks, ROOMY),
        ThreadExecutor(threads=threads, stop=stop),
        on_end=lambda one, error, dropped: ended.append((one.name, str(error), names(dropped))),
    )
    return ended


def test_tasks_run_beside_each_other_and_in_order() -> None:
    meet = threading.Barrier(2, timeout=10)
    seen: list[str] = []
    tasks = [
        task("a", work=meet.wait),
        task("b", work=meet.wait),
        task("c", "a", "b", work=lambda: seen.append("c")),
    ]
    ended = run(tasks)
    assert (ended[-1], seen) == (("c", "None", []), ["c"])


def test_an_error_is_told_with_what_is_dropped() -> None:
    def fails() -> None:
        raise ZeroDivisionError("so it is")

    ended = run([task("a", work=fails), task("b", "a"), task("c")])
    assert sorted(ended) == [("a", "so it is", ["b"]), ("c", "None", [])]


def test_an_interruption_stops_the_others() -> None:
    stopped = threading.Event()

    def interrupted() -> None:
        time.sleep(0.05)
        raise Interrupted("interrupted")

    tasks = [task("a", work=interrupted), task("b", work=lambda: stopped.wait(10)), task("c", "b")]
    with pytest.raises(Interrupted):
        run(tasks, stop=stopped.set)
    assert stopped.is_set()


def test_ctrl_c_again_and_again_ends_the_tasks_in_order() -> None:
    """Of an impatient user: what follows the first changes nothing."""
    stopped = threading.Event()

    def interrupt() -> None:
        for _ in range(10_000):
            if stopped.wait(0.001):
                return
            os.kill(os.getpid(), signal.SIGINT)

    def stop() -> None:
        time.sleep(0.2)
        stopped.set()

    tasks = [task("a", work=interrupt), task("b", work=lambda: stopped.wait(10)), task("c", "b")]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run(tasks, stop=stop)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.is_set()


def test_what_is_ignored_stays_ignored() -> None:
    noted: list[str] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptions(lambda: noted.append("noted")):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert noted == ["noted"]


def test_durations_are_kept_for_the_next_run(tmp_path: Path) -> None:
    first = Durations.read(tmp_path)
    assert first.known == {}
    first.measured.update({"stage a": 3.5, "stage b": 1})
    first.keep(tmp_path)
    second = Durations.read(tmp_path)
    second.measured["stage a"] = 4
    second.keep(tmp_path)
    assert Durations.read(tmp_path).known == {"stage b": 1.0, "stage a": 4.0}


def test_a_home_without_locks_keeps_no_durations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    durations = Durations.read(tmp_path)
    durations.measured["stage a"] = 1
    durations.keep(tmp_path)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": "long"}'])
def test_durations_that_cannot_be_read_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "durations.json").write_text(text)
    assert Durations.read(tmp_path).known == {}
