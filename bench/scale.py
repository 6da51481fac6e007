"""The schedule of 10,000 images on 100 workers, by a virtual clock, with and without faults.

    python bench/scale.py [--seeds 10] [--first 0] [--cells 10000] [--workers 100] [--json]

`run_all` and `Schedule` are those of the program; what carries their tasks is simulated. Each seed
runs twice. Without faults, the end of the last task is compared with what no schedule can go below.
With faults, workers are lost, preempted and slow, machines crash, results come twice or after their
attempt was given up, a store refuses results, tasks fail, and some tasks and a machine lose every
worker. Each task has to be accepted once at most, no evidence of an attempt that was given up, and
each image has to end as verified or with a reason.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from typing import cast

from scale_cells import Site, make_site
from timing import machine

from builder.build.executor import AttemptEnded, Event, WorkerJoined, WorkerLost, run_all
from builder.build.schedule import Attempt, Schedule
from builder.build.tasks import Task
from builder.build.workers import Worker
from builder.model.errors import Interrupted, StepFailed, TemporaryFailure

REACH = 1.1  # of the lower bound
FAULTS = {  # in so many of the attempts
    "lost": 0.003,
    "cut off": 0.003,  # lost; its result comes later
    "preempted": 0.01,
    "machine crashed": 0.0002,
    "slow": 0.02,
    "result twice": 0.01,
    "store refused": 0.01,
    "failed": 0.001,
}
_DEADLY_TASKS, _DEADLY_MACHINES = 2, 1
_RETURNS_S = 300.0  # until a lost worker's machine has a new one
_LATE_S = 200.0  # results on average, after the end of their attempt
_CANCELLED_S = 5.0


class SimulatedWorkers:
    """An executor with a virtual clock, and its queue of events. It checks what it is asked."""

    def __init__(self, site: Site, faults: Mapping[str, float], chance: random.Random) -> None:
        self.schedule = Schedule(site.tasks, workers=())
        self.now = self.end = 0.0
        self.counts: Counter[str] = Counter()
        self.accepted: dict[str, Attempt] = {}
        self.reasons: dict[str, str] = {}  # of tasks that failed or were dropped
        self.wrong: list[str] = []
        self._site, self._chance = site, chance
        self._fates, self._odds = (*faults, ""), (*faults.values(), 1 - sum(faults.values()))
        self._alive = {worker.name: worker for worker in site.workers}
        self._busy: dict[str, Attempt] = {}  # by worker
        self._given_up: set[Attempt] = set()
        self._lost: set[str] = set()  # tasks
        self._vacated: set[str] = set()  # machines that had no worker for a time
        self._queue: list[tuple[float, int, Event, bool]] = []
        self._number = 0  # of the last event that was queued
        self._event: Event = None  # that was taken last
        machines = sorted({worker.machine for worker in site.workers})
        self._deadly: set[str] = set()  # tasks and machines
        if faults:
            self._deadly |= {*chance.sample([task.name for task in site.tasks], _DEADLY_TASKS)}
            self._deadly |= {*chance.sample(machines, _DEADLY_MACHINES)}

    def run(self) -> None:
        """Run all tasks, and check how each image ended."""
        run_all(self.schedule, self, on_end=self._on_end, clock=lambda: self.now)
        for task in self._site.tasks:
            if task.name not in self.accepted and not self.reasons.get(task.name):
                self.wrong.append(f"{task.name}: neither accepted nor failed")

    # ---- The executor ----

    @property
    def events(self) -> SimpleQueue[Event]:
        return cast("SimpleQueue[Event]", self)

    def capacity(self) -> Sequence[Worker]:
        return [*self._alive.values()]

    def start(self, task: Task, attempt: Attempt) -> None:
        self.wrong += [f"{attempt}: {text}" for text in self._wrong(task, attempt)]
        self.counts["attempts"] += 1
        self._busy[attempt.worker.name] = attempt
        seconds = self._site.seconds_on(task, attempt.worker.pool)
        fate = self._chance.choices(self._fates, self._odds)[0]
        if self._deadly & {task.name, attempt.worker.machine}:
            fate = "lost"
        self.counts[fate] += 1
        self._draw(attempt, seconds, fate)

    def cancel(self, attempt: Attempt) -> None:
        self.counts["cancelled"] += 1
        self._later(_CANCELLED_S, AttemptEnded(attempt=attempt, error=Interrupted("cancelled")))

    def accept(self, attempt: Attempt) -> None:
        del attempt
        self.counts["accepted"] += 1

    def stop(self) -> None:
        """End nothing: an error in this process has no other."""

    def close(self) -> None:
        """Hold nothing."""

    def _draw(self, attempt: Attempt, seconds: float, fate: str) -> None:
        """Queue what happens to an attempt."""
        worker, broken_s = attempt.worker, seconds * self._chance.random()
        ended = AttemptEnded(attempt=attempt)
        late_s = seconds + self._chance.expovariate(1 / _LATE_S)
        match fate:
            case "lost" | "cut off" | "preempted":
                is_explained = fate == "preempted"
                self._later(broken_s, WorkerLost(worker=worker.name, explained=is_explained))
            case "machine crashed":
                names = [
                    name for name in self._alive if self._alive[name].machine == worker.machine
                ]
                for name in names:
                    self._later(broken_s, WorkerLost(worker=name))
            case "store refused":
                ended = dataclasses.replace(ended, error=TemporaryFailure("no answer"))
            case "failed":
                ended = dataclasses.replace(ended, error=StepFailed("exit status 1"))
            case "slow":
                seconds *= self._chance.uniform(3, 10)
        self._later(seconds, ended)
        if fate in {"cut off", "result twice"}:
            self._later(late_s, ended, is_late=True)

    def _wrong(self, task: Task, attempt: Attempt) -> list[str]:
        """Faults of an attempt."""
        worker = attempt.worker
        rules = {
            "its worker is gone": self._alive.get(worker.name) != worker,
            "its worker is busy": worker.name in self._busy,
            "its machine was put aside": worker.machine in self.schedule.aside,
            "its worker cannot run it": worker.pool not in self._site.pools_of(task),
            "its needs are missing": any(name not in self.accepted for name in task.needs),
            "it ended before": task.name in self.accepted or task.name in self.reasons,
            "it left its image": task.kind == "pack" and self._left(task, worker.machine),
        }
        return [text for text, holds in rules.items() if holds]

    def _left(self, pack: Task, machine: str) -> bool:
        """Return whether an image is packed elsewhere than it was built, for no reason."""
        built = self.accepted[pack.needs[0]].worker.machine
        is_usable = built not in self.schedule.aside and built not in self._vacated
        return machine != built and is_usable and pack.name not in self._lost

    # ---- The queue of events ----

    def put(self, item: Event) -> None:
        self._later(0, item)

    def get(self, *, timeout: float) -> Event:
        while self._queue:
            self.now, _, event, is_late = heappop(self._queue)
            if self._happens(event, is_late):
                self._event = event
                return event
        self.now += timeout
        raise Empty

    def _later(self, seconds: float, event: Event, *, is_late: bool = False) -> None:
        self._number += 1
        heappush(self._queue, (self.now + seconds, self._number, event, is_late))

    def _happens(self, event: Event, is_late: bool) -> bool:
        """Change the workers by an event; False if another came before it."""
        match event:
            case WorkerLost():
                return self._loses(event)
            case WorkerJoined():
                self._alive[event.worker.name] = event.worker
            case AttemptEnded(attempt=attempt) if self._busy.get(attempt.worker.name) == attempt:
                del self._busy[attempt.worker.name]
            case AttemptEnded(attempt=attempt):
                is_refused = attempt in self._given_up and attempt.name.startswith("verify ")
                self.counts["evidence refused"] += is_late and is_refused
                return is_late
        return True

    def _loses(self, event: WorkerLost) -> bool:
        worker = self._alive.pop(event.worker, None)
        if worker is None:
            return False
        if attempt := self._busy.pop(event.worker, None):
            self._given_up.add(attempt)
            self._lost.add(attempt.name)
        if all(other.machine != worker.machine for other in self._alive.values()):
            self._vacated.add(worker.machine)
        name = f"{worker.name.partition('#')[0]}#{self._number}"
        self._later(_RETURNS_S, WorkerJoined(worker=dataclasses.replace(worker, name=name)))
        return True

    def _on_end(self, task: Task, error: BaseException | None, dropped: Sequence[Task]) -> None:
        for name in (task.name, *(other.name for other in dropped)):
            if name in self.accepted or name in self.reasons:
                self.wrong.append(f"{name}: ended twice")
        if error:
            self.reasons[task.name] = str(error)
            self.reasons.update({other.name: f"needs {task.name}" for other in dropped})
            return
        assert isinstance(self._event, AttemptEnded)
        self.accepted[task.name], self.end = self._event.attempt, self.now
        if task.kind == "verify" and self._event.attempt in self._given_up:
            self.wrong.append(f"{task.name}: evidence of an attempt that was given up")


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """One seed. `ratio` is that of the time without faults to the lower bound; times in seconds.

    `verified` and `failed` are images, `blamed` and `unplaced` tasks that failed because they lost
    workers or because no worker is left for them, `aside` machines. `wall_s` is what both runs
    took, `counts` what happened in the one with faults.
    """

    seed: int
    tasks: int
    ratio: float
    bound_s: float
    makespan_s: float
    makespan_with_faults_s: float
    verified: int
    failed: int
    blamed: int
    unplaced: int
    aside: int
    wall_s: float
    counts: Mapping[str, int]
    wrong: Sequence[str]


def simulate(seed: int, *, cells: int, workers: int) -> Simulated:
    """Run the tasks of one seed without and with faults."""
    start = time.perf_counter()
    chance = random.Random(seed)
    site = make_site(cells, workers, chance)
    smooth, rough = (SimulatedWorkers(site, faults, chance) for faults in ({}, FAULTS))
    smooth.run()
    rough.run()
    bound = max(site.bounds().values())
    images = [task.name for task in site.tasks if task.kind == "verify"]
    verified = sum(name in rough.accepted for name in images)
    return Simulated(
        seed=seed,
        tasks=len(site.tasks),
        ratio=smooth.end / bound,
        bound_s=bound,
        makespan_s=smooth.end,
        makespan_with_faults_s=rough.end,
        verified=verified,
        failed=len(images) - verified,
        blamed=sum("was lost" in text for text in rough.reasons.values()),
        unplaced=sum("there is no worker" in text for text in rough.reasons.values()),
        aside=len(rough.schedule.aside),
        wall_s=time.perf_counter() - start,
        counts=dict(sorted(rough.counts.items())),
        wrong=[
            *smooth.wrong,
            *(f"without faults: {name}" for name in smooth.reasons),
            *rough.wrong,
        ],
    )


def main() -> int:
    """Simulate each seed; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="one JSON object a seed")
    chosen = parser.parse_args()
    if not chosen.json:
        print(machine())
        print(f"{chosen.cells} cells on {chosen.workers} workers")
    results: list[Simulated] = []
    with contextlib.suppress(KeyboardInterrupt):
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            results.append(simulate(seed, cells=chosen.cells, workers=chosen.workers))
            show(results[-1], as_json=chosen.json)
    if results and not chosen.json:
        summarize(results)
    if len(results) < chosen.seeds:
        print(f"--first {chosen.first + len(results)} goes on from here", file=sys.stderr)
        return 130
    return 1 if any(result.wrong for result in results) else 0


def show(result: Simulated, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(result)), flush=True)
        return
    print(
        f"  seed {result.seed:4}: {result.makespan_s:7.0f} s / {result.bound_s:7.0f} s"
        f" = {result.ratio:.3f}; with faults {result.makespan_with_faults_s:7.0f} s,"
        f" {result.verified} verified, {result.failed} failed; {len(result.wrong)} wrong;"
        f" took {result.wall_s:.1f} s",
        flush=True,
    )
    print(*(f"    {text}" for text in result.wrong[:10]), sep="\n", end="")


def summarize(results: Sequence[Simulated]) -> None:
    ratios = [result.ratio for result in results]
    counts = sum((Counter(dict(result.counts)) for result in results), Counter[str]())
    print(f"  makespan / lower bound: median {statistics.median(ratios):.3f},", end="")
    print(f" worst {max(ratios):.3f}   (reach: at most {REACH})")
    print(f"  a seed took at most {max(result.wall_s for result in results):.1f} s   (reach: 60)")
    print(f"  with faults, of {sum(result.tasks for result in results)} tasks: ", end="")
    print(", ".join(f"{name or 'sound'} {number}" for name, number in sorted(counts.items())))
    for name in ("verified", "failed", "blamed", "unplaced", "aside"):
        print(f"  {name}: {sum(getattr(result, name) for result in results)}")
    print(f"  wrong: {sum(len(result.wrong) for result in results)}   (reach: 0)")


if __name__ == "__main__":
    sys.exit(main())
