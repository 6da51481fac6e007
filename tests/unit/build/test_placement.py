"""On which worker a task runs: architectures, GPUs, machines that have its input, scarce pools."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from builder.build.schedule import Attempt, Schedule
from builder.build.tasks import Task
from builder.build.workers import ANYWHERE, Pool, Requirement, Slots, Worker, requirement_of

X86 = Pool(name="x86", architectures=("x86_64", "ppc64le", "aarch64"))
POWER = Pool(name="power", architectures=("ppc64le",))
GPU = Pool(name="gpu", architectures=("x86_64",), gpus=1)
HERE = Pool(name="here")


def worker(name: str, pool: Pool, machine: str = "") -> Worker:
    return Worker(name=name, machine=machine or f"of {name}", pool=pool)


def task(name: str, arch: str = "x86_64", *needs: str, gpus: int = 0, seconds: float = 1) -> Task:
    kind = name.partition(" ")[0]
    requires = requirement_of(kind, arch, gpus=gpus)
    return Task(
        name=name, kind=kind, work=lambda: None, needs=needs, requires=requires, seconds=seconds
    )


def placed(attempts: Sequence[Attempt]) -> dict[str, str]:
    return {attempt.name: attempt.worker.name for attempt in attempts}


@pytest.mark.parametrize(
    ("requires", "pools", "expected"),
    [
        (requirement_of("stage", "ppc64le"), [X86, POWER, GPU], ["power", "x86"]),
        (requirement_of("stage", "x86_64"), [GPU, X86], ["x86", "gpu"]),
        (requirement_of("stage", "aarch64"), [X86, POWER, GPU], ["x86"]),
        (requirement_of("stage", "aarch64"), [POWER, GPU], []),
        (requirement_of("pack", "ppc64le"), [X86, POWER], ["power", "x86"]),
        (requirement_of("verify", "ppc64le"), [X86, POWER], ["power"]),
        (requirement_of("verify", "ppc64le"), [X86], ["x86"]),
        (requirement_of("verify", "x86_64"), [GPU, X86], ["x86", "gpu"]),
        (requirement_of("verify", "x86_64", gpus=1), [X86, GPU], ["gpu"]),
        (requirement_of("verify", "x86_64", gpus=2), [X86, GPU], ["x86", "gpu"]),
        (requirement_of("verify", "ppc64le", gpus=1), [X86, POWER, GPU], ["power"]),
        (requirement_of("verify", "ppc64le", gpus=1), [HERE], ["here"]),
        (ANYWHERE, [POWER, GPU], ["power", "gpu"]),
    ],
)
def test_the_pools_that_may_run_a_task(
    requires: Requirement, pools: list[Pool], expected: list[str]
) -> None:
    assert [pool.name for pool in requires.choice(pools)] == expected


@pytest.mark.parametrize(
    ("requires", "text"),
    [
        (ANYWHERE, "worker for any architecture"),
        (Requirement(arch="ppc64le", gpus=1), "worker for ppc64le with 1 GPU"),
        (Requirement(arch="x86_64", gpus=2), "worker for x86_64 with 2 GPUs"),
    ],
)
def test_a_requirement_in_words(requires: Requirement, text: str) -> None:
    assert str(requires) == text


def test_one_worker_takes_one_task() -> None:
    tasks = [task(f"stage {name}") for name in "abc"]
    schedule = Schedule(tasks, workers=[worker("one", X86), worker("two", X86)])
    first, second = schedule.start()
    assert placed([first, second]) == {"stage a": "one", "stage b": "two"}
    assert schedule.start() == []
    assert schedule.done(second)
    assert placed(schedule.start()) == {"stage c": "two"}


def test_native_workers_come_first_and_emulating_ones_take_the_rest() -> None:
    tasks = [task("stage a", "ppc64le"), task("stage b", "ppc64le"), task("stage c")]
    schedule = Schedule(tasks, workers=[worker("cpu", X86), worker("power", POWER)])
    assert placed(schedule.start()) == {"stage a": "power", "stage b": "cpu"}


def test_a_native_verification_waits_for_its_pool() -> None:
    """Also for one that no worker joined yet, if the site has it."""
    tasks = [task("verify a", "ppc64le"), task("verify b")]
    schedule = Schedule(tasks, workers=[worker("cpu", X86)], pools=[POWER])
    assert placed(schedule.start()) == {"verify b": "cpu"}
    assert schedule.start() == []
    schedule.join(worker("power", POWER))
    assert placed(schedule.start()) == {"verify a": "power"}


def test_gpus_are_left_for_those_that_need_them() -> None:
    tasks = [task("verify a", gpus=1), task("verify b", seconds=9), task("verify c", gpus=1)]
    schedule = Schedule(tasks, workers=[worker("gpu", GPU), worker("cpu", X86)])
    assert placed(schedule.start()) == {"verify b": "cpu", "verify a": "gpu"}


def test_an_image_is_packed_where_it_was_built() -> None:
    tasks = [task("image a"), task("image b"), task("pack a", "x86_64", "image a", seconds=5)]
    workers = [worker("one", X86), worker("two", X86)]
    schedule = Schedule(tasks, workers=workers)
    first, second = schedule.start()
    assert placed([first, second]) == {"image a": "one", "image b": "two"}
    schedule.done(second)
    assert schedule.start() == []
    schedule.done(first)
    assert placed(schedule.start()) == {"pack a": "one"}


def test_packing_waits_for_its_machine_and_goes_elsewhere_without_it() -> None:
    tasks = [task("image a"), task("pack a", "x86_64", "image a"), task("stage b", seconds=99)]
    schedule = Schedule(tasks, workers=[worker("one", X86)])
    (attempt,) = schedule.start()
    assert attempt.name == "stage b"
    schedule.join(worker("two", X86))
    (image,) = schedule.start()
    schedule.lost("one", explained=True)
    schedule.done(image)
    (pack,) = schedule.start()
    assert pack.worker.name == "two", "stage b is ready again, and comes later"
    schedule.lost("two", explained=True)
    schedule.join(worker("three", X86))
    assert {*placed(schedule.start()).values()} == {"three"}


def test_work_goes_on_near_its_input() -> None:
    workers = [worker(f"{name}{slot}", X86, name) for name in "abc" for slot in "12"]
    tasks = [task(f"stage {number}") for number in range(6)]
    tasks += [task(f"verify {number}", "x86_64", f"stage {number}") for number in range(6)]
    schedule = Schedule(tasks, workers=workers)
    attempts = schedule.start()
    for attempt in reversed(attempts):
        schedule.done(attempt)
    where = {attempt.name[-1]: attempt.worker.machine for attempt in attempts}
    assert {attempt.name[-1]: attempt.worker.machine for attempt in schedule.start()} == where


def test_what_leads_to_scarce_workers_comes_first() -> None:
    """The GPU has work for the whole run; the longest path alone would let it wait."""
    tasks = [task(f"image {name}", seconds=40) for name in "abcdefghij"]
    tasks += [
        task(f"verify {name}", "x86_64", f"image {name}", gpus=int(name > "b"), seconds=seconds)
        for name, seconds in zip("abcdefghij", (90, 90, *[80] * 8), strict=True)
    ]
    builders = [worker("one", X86), worker("two", X86)]
    schedule = Schedule(tasks, workers=builders, pools=[GPU])
    assert [*placed(schedule.start())] == ["image c", "image d"]
    gpus = [worker(f"gpu {number}", GPU) for number in range(4)]
    schedule = Schedule(tasks, workers=[*builders, *gpus])
    assert [*placed(schedule.start())][:2] == ["image a", "image b"], "four GPUs are enough"


def test_slots_count_the_workers_that_may_run_tasks() -> None:
    slots = Slots([worker("a", X86, "one"), worker("b", X86, "one"), worker("c", POWER)])
    slots.join(worker("a", X86, "one"))
    assert slots.counts == {X86: 2, POWER: 1}
    assert slots.leave("a") == worker("a", X86, "one")
    assert slots.leave("a") is None
    assert slots.counts[X86] == 1
    slots.put_aside("one")
    assert (slots.counts[X86], slots.has("one"), slots.free_count) == (0, False, 1)
    slots.join(dataclasses.replace(worker("d", X86), machine="one"))
    slots.leave("b")
    assert not slots.has("one")
    assert slots.fits(requirement_of("stage", "ppc64le"))
    assert not slots.fits(requirement_of("stage", "x86_64"))
