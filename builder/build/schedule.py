"""The order of tasks: of the ready tasks within the limits, the longest path starts first.

`Schedule` has no threads and no clock: its caller tells the time, and reports results and lost
workers, and it selects what starts next, and on which worker. `run_all` in `executor` is that
caller.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from builder.build.tasks import BUILD_KINDS, Lane, ReadyTasks, Task, TaskLimits
from builder.build.workers import MOST_LOSSES, Losses, Pool, Slots, Worker
from builder.model.errors import BuildImagesError, MissingPrerequisite, StepFailed

# Seconds before the further tries of a task, after failures outside of it, such as a store that did
# not answer.
PAUSES_S = (2.0, 4.0, 8.0, 16.0, 32.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One dispatch of a task, by name, to a worker. The attempts of a task count from 1."""

    name: str
    number: int
    worker: Worker


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedTask:
    """A task that the schedule gives up, and those that are dropped because they need it."""

    task: Task
    error: BuildImagesError
    dropped: Sequence[Task]


class Schedule:
    """The tasks of one run, their attempts on workers, and their progress.

    `limits` are for this machine; workers elsewhere need none, since each takes one task at a time.
    `workers` take tasks from the start, others join; `pools` are those that they may still join.
    `now` is the time in seconds; the caller sets it.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        limits: TaskLimits | None = None,
        *,
        workers: Iterable[Worker] = (),
        pools: Iterable[Pool] = (),
    ) -> None:
        self.now = 0.0
        self._limits = limits
        self._slots = Slots(workers, pools)
        self._losses = Losses()
        self._tasks = {task.name: task for task in tasks}
        self._order = {name: number for number, name in enumerate(self._tasks)}
        self._numbers: Counter[str] = Counter()  # attempts of each task
        self._retries: Counter[str] = Counter()
        self._paused: dict[str, float] = {}  # until when, by task
        self._current: dict[str, Attempt] = {}  # by task
        self._busy: dict[str, Attempt] = {}  # by worker; also those that are given up
        self._over: set[str] = set()
        self._machines: dict[str, str] = {}  # of the accepted results
        self._remaining = Counter(task.group for task in self._tasks.values())
        self._ready = ReadyTasks(self._tasks, self._slots, grouped=limits is not None)
        self._followers: dict[str, list[str]] = defaultdict(list)
        self._waits = {name: len(task.follows) for name, task in self._tasks.items()}
        for task in self._tasks.values():
            for earlier in task.follows:
                self._followers[earlier].append(task.name)
            if not task.follows:
                self._enqueue(task)

    @property
    def is_over(self) -> bool:
        """True if nothing runs and nothing remains."""
        return len(self._over) == len(self._tasks)

    @property
    def is_idle(self) -> bool:
        """True if no task runs, or will after a pause."""
        return not self._current and not self._paused

    @property
    def aside(self) -> Mapping[str, tuple[str, ...]]:
        """The machines that get no more tasks, each with the tasks that were lost on it."""
        return self._losses.aside

    def task(self, name: str) -> Task:
        return self._tasks[name]

    def current(self, name: str) -> Attempt | None:
        """Return the attempt of a task that runs and is not given up."""
        return self._current.get(name)

    def join(self, worker: Worker) -> None:
        """Add a worker, which is free."""
        self._slots.join(worker)

    # ---- Starting tasks ----

    def start(self, *, free_disk: int = 0) -> list[Attempt]:
        """Return the attempts to start now, which count as running from here on.

        `free_disk` is what is free now, in bytes; zero is no limit. A task that exceeds a limit by
        itself starts when nothing else runs.
        """
        for name in [name for name, until in self._paused.items() if until <= self.now]:
            del self._paused[name]
            self._enqueue(self._tasks[name])
        self._ready.reorder()
        started = list(self._begin_all(lambda task: self._fits(task, free_disk)))
        if not started and not self._busy:
            started = list(islice(self._begin_all(lambda _: True), 1))
        return started

    def _begin_all(self, fits: Callable[[Task], bool]) -> Iterator[Attempt]:
        blocked: set[Lane] = set()
        while self._slots.free_count and (attempt := self._begin_first(fits, blocked)):
            yield attempt

    def _begin_first(self, fits: Callable[[Task], bool], blocked: set[Lane]) -> Attempt | None:
        """Start the first task that can; add the lanes of those before it to the blocked ones."""
        for task, lane in self._ready.firsts(blocked):
            if fits(task) and (worker := self._worker(task, lane)):
                return self._begin(task, worker)
            blocked.add(lane)
        return None

    def _worker(self, task: Task, lane: Lane) -> Worker | None:
        near = self._machines.get(task.needs[-1], "") if task.needs else ""
        return self._slots.choose(task.requires, only=lane.only, near=near, avoids=lane.avoids)

    def _begin(self, task: Task, worker: Worker) -> Attempt:
        self._numbers[task.name] += 1
        attempt = Attempt(name=task.name, number=self._numbers[task.name], worker=worker)
        self._current[task.name] = self._busy[worker.name] = attempt
        self._slots.take(worker)
        self._ready.remove(task)
        self._ready.open(task.group)
        return attempt

    def _fits(self, task: Task, free_disk: int) -> bool:
        limits = self._limits
        if limits is None:
            return True
        running = [self._tasks[attempt.name] for attempt in self._busy.values()]
        builds = [other for other in running if other.kind in BUILD_KINDS]
        emulated = sum(other.emulated for other in builds)
        is_build = task.kind in BUILD_KINDS
        memory = task.memory + sum(other.memory for other in running)
        disk = task.disk + sum(other.disk for other in running)
        return not (
            (is_build and len(builds) >= limits.builds)
            or (is_build and task.emulated and emulated >= limits.emulated)
            or (self._ready.opens(task) and len(self._ready.open_groups) >= limits.groups)
            or (limits.memory and memory > limits.memory)
            or (free_disk and disk > free_disk)
        )

    def _enqueue(self, task: Task) -> None:
        """Add a task to the ready ones, or change what it waits for."""
        avoids = self._losses.machines(task.name)
        stays = task.requires.stays and task.needs
        machine = self._machines.get(task.needs[0], "") if stays else ""
        is_bound = machine not in avoids and self._slots.has(machine)
        self._ready.add(task, only=machine if is_bound else "", avoids=avoids)

    def _unbind(self, machine: str) -> None:
        """Let the tasks that wait for a machine without workers run elsewhere."""
        for name in () if self._slots.has(machine) else self._ready.bound_to(machine):
            self._enqueue(self._tasks[name])

    # ---- Results ----

    def accepts(self, attempt: Attempt) -> bool:
        """Return whether the result of an attempt counts, as that of one attempt of each task does.

        Evidence is accepted of the current attempt only. Of a build the first result is accepted,
        even if its attempt was given up.
        """
        is_current = self._current.get(attempt.name) == attempt
        is_evidence = self._tasks[attempt.name].kind == "verify"
        return attempt.name not in self._over and (is_current or not is_evidence)

    def done(self, attempt: Attempt) -> bool:
        """Note the result of an attempt; return whether it is accepted."""
        name, is_accepted = attempt.name, self.accepts(attempt)
        self._release(attempt)
        if is_accepted:
            self._machines[name] = attempt.worker.machine
            self._losses.completed(attempt.worker.machine)
            self._finish(name)
        return is_accepted

    def failed(self, attempt: Attempt) -> list[Task]:
        """Note that a task failed; return the tasks that are dropped because they need it.

        The failure of an attempt that was given up changes nothing.
        """
        return self._drop(attempt.name) if self._release(attempt) else []

    def retry(self, attempt: Attempt) -> bool:
        """Note that an attempt ended without a result, for a reason outside of its task.

        The task starts again after a pause. Return False, and note nothing, if that happened too
        often: the task is to fail.
        """
        tries = self._retries[attempt.name]
        if tries >= len(PAUSES_S):
            return False
        if self._release(attempt):
            self._retries[attempt.name] += 1
            self._paused[attempt.name] = self.now + PAUSES_S[tries]
        return True

    def lost(
        self, worker: str, *, explained: bool = False, reason: str = "", sound: bool = False
    ) -> FailedTask | None:
        """Note that a worker was lost: its task is ready again, for another machine.

        A loss that is explained, as by preemption, counts neither against the task nor against the
        machine. `reason` is the error of the task there, if it is known; the machine is `sound` if
        that says nothing against it. Return the task if it is to blame.
        """
        attempt, gone = self._busy.pop(worker, None), self._slots.leave(worker)
        if gone:
            self._unbind(gone.machine)
        if attempt is None or self._current.get(attempt.name) != attempt:
            return None
        del self._current[attempt.name]
        task = self._tasks[attempt.name]
        if not explained:
            self._losses.add(task.name, attempt.worker.machine, sound=sound)
            self._put_aside(attempt.worker.machine)
            if self._is_to_blame(task):
                return self._lost_too_often(task, reason)
        self._enqueue(task)
        return None

    def _put_aside(self, machine: str) -> None:
        if machine in self._losses.aside:
            self._slots.put_aside(machine)
            self._unbind(machine)

    def _is_to_blame(self, task: Task) -> bool:
        """Return whether a task was lost on enough machines, or on all and often enough."""
        machines = self._losses.machines(task.name)
        return len(machines) >= MOST_LOSSES or (
            self._losses.count(task.name) >= MOST_LOSSES
            and not self._slots.fits(task.requires, without=machines)
        )

    def _lost_too_often(self, task: Task, reason: str) -> FailedTask:
        machines = ", ".join(sorted(self._losses.machines(task.name)))
        times = f"{self._losses.count(task.name)} times, on {machines}"
        error: BuildImagesError = StepFailed(
            f"{task.label or task.name}: its worker was lost {times}",
            hint="it may need more memory or disk space than these machines have",
        )
        if reason:
            error = MissingPrerequisite(f"{task.label or task.name}: tried {times}: {reason}")
        return FailedTask(task=task, error=error, dropped=self._drop(task.name))

    def abandon(self) -> list[FailedTask]:
        """Fail the ready tasks that no worker fits, once no more workers are expected."""
        return [
            FailedTask(task=task, error=self._unplaced(task), dropped=self._drop(task.name))
            for task in self._without_workers()
        ]

    def missing_workers(self) -> list[str]:
        """Return what the workers must be that ready tasks wait for."""
        return sorted({str(task.requires) for task in self._without_workers()})

    def _without_workers(self) -> list[Task]:
        tasks = (self._tasks[name] for name in self._ready.names)
        return [task for task in tasks if not self._slots.fits(task.requires)]

    def _unplaced(self, task: Task) -> MissingPrerequisite:
        machines = ", ".join(f"{name} (lost {', '.join(self.aside[name])})" for name in self.aside)
        return MissingPrerequisite(
            f"{task.label or task.name}: there is no {task.requires}",
            hint=f"no more used after losses: {machines}" if machines else "",
        )

    def _release(self, attempt: Attempt) -> bool:
        """Free the slot of an attempt; return whether it was its task's current one."""
        if self._busy.get(attempt.worker.name) == attempt:
            del self._busy[attempt.worker.name]
            self._slots.release(attempt.worker)
        if self._current.get(attempt.name) != attempt:
            return False
        del self._current[attempt.name]
        return True

    def _drop(self, name: str) -> list[Task]:
        """Finish a task that failed, and those that need it; return the latter."""
        dropped: dict[str, Task] = {}
        level = [name]
        while level:
            needing = {
                follower
                for failed in level
                for follower in self._followers[failed]
                if failed in self._tasks[follower].needs and follower not in self._over
            }
            level = sorted(needing - dropped.keys(), key=self._order.__getitem__)
            dropped.update({follower: self._tasks[follower] for follower in level})
        for over in (name, *dropped):
            self._finish(over)
        return list(dropped.values())

    def _finish(self, name: str) -> None:
        task = self._tasks[name]
        self._over.add(name)
        self._current.pop(name, None)
        self._paused.pop(name, None)
        self._ready.end(task)
        self._remaining[task.group] -= 1
        if not self._remaining[task.group]:
            self._ready.close(task.group)
        for follower in self._followers[name]:
            self._waits[follower] -= 1
            if not self._waits[follower] and follower not in self._over:
                self._enqueue(self._tasks[follower])
