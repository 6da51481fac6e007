"""Workers: which of them may run a task, which are free, and which machines lose tasks.

One worker is one slot. Nothing here has threads, a clock or a network.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

MOST_LOSSES = 3  # on different machines: the task is to blame; of different tasks: the machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Workers that are alike: their architectures, the native one first, and the GPUs of each.

    An empty tuple stands for all architectures, as on this machine, where each task knows itself
    whether it is emulated.
    """

    name: str
    architectures: tuple[str, ...] = ()
    gpus: int = 0

    def runs(self, arch: str) -> bool:
        """Return whether a worker can run tasks for an architecture; an empty one is any."""
        return not arch or not self.architectures or arch in self.architectures

    def is_native(self, arch: str) -> bool:
        """Return whether a worker runs tasks for an architecture without emulation."""
        return not arch or not self.architectures or arch == self.architectures[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """A slot for one task at a time. `name` is unique; a machine may have several workers."""

    name: str
    machine: str
    pool: Pool


_HERE = Pool(name="this machine")


def workers_here(number: int) -> tuple[Worker, ...]:
    """Return the workers of this machine, which run every task."""
    return tuple(
        Worker(name=f"{_HERE.name} {index}", machine=_HERE.name, pool=_HERE)
        for index in range(1, number + 1)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """The place for a task: workers that run `arch` (empty: all workers), native ones first.

    With `native`, workers that emulate it are used only if no pool has it natively. With `gpus`,
    only workers with so many are used, unless no native pool has them. With `stays`, the task
    runs where the first of its needs ran, as long as that machine has workers.
    """

    arch: str = ""
    native: bool = False
    gpus: int = 0
    stays: bool = False

    def __str__(self) -> str:
        gpus = f" with {self.gpus} GPU{'s'[: self.gpus - 1]}" if self.gpus else ""
        return f"worker for {self.arch or 'any architecture'}{gpus}"

    def choice(self, pools: Iterable[Pool]) -> list[Pool]:
        """Return the pools whose workers may run the task, in order of preference."""
        fitting = [pool for pool in pools if pool.runs(self.arch)]
        native = [pool for pool in fitting if pool.is_native(self.arch)]
        equipped = [pool for pool in native if pool.gpus >= self.gpus] if self.gpus else []
        chosen = equipped or (native if self.native else []) or fitting
        # A worker with GPUs is left for the tasks that need them, as long as others are free.
        return sorted(
            chosen, key=lambda pool: (not pool.is_native(self.arch), pool.gpus, pool.name)
        )


ANYWHERE = Requirement()


def requirement_of(kind: str, arch: str, *, gpus: int = 0) -> Requirement:
    """Return where a task of the main job may run."""
    if kind == "verify":
        return Requirement(arch=arch, native=True, gpus=gpus)
    return Requirement(arch=arch, stays=kind == "pack")


class Slots:
    """The workers of a run, and those of them that are free, by pool and machine."""

    def __init__(self, workers: Iterable[Worker] = (), pools: Iterable[Pool] = ()) -> None:
        self._pools = dict.fromkeys(pools)
        self._choices: dict[Requirement, list[Pool]] = {}
        self._workers: dict[str, Worker] = {}
        self._machines: dict[Pool, Counter[str]] = defaultdict(Counter)  # workers of each
        self.counts: Counter[Pool] = Counter()  # workers that may run tasks
        self.changes = 0  # of the pools and of these counts
        self._free: dict[Pool, dict[str, dict[str, Worker]]] = defaultdict(dict)
        self.free_count = 0
        self._aside: set[str] = set()
        for worker in workers:
            self.join(worker)

    def has(self, machine: str) -> bool:
        """Return whether a machine has workers that may run tasks."""
        return any(machine in machines for machines in self._machines.values())

    def fits(self, requires: Requirement, *, without: Collection[str] = ()) -> bool:
        """Return whether any worker, free or not, may run a task, `without` some machines."""
        machines = (name for pool in self.choice(requires) for name in self._machines[pool])
        return any(name not in without for name in machines)

    def join(self, worker: Worker) -> None:
        """Add a free worker; one of a machine that was put aside gets no tasks."""
        if worker.name in self._workers:
            return
        self.changes += 1
        self._workers[worker.name] = worker
        if worker.pool not in self._pools:
            self._pools[worker.pool] = None
            self._choices.clear()
        if worker.machine not in self._aside:
            self._machines[worker.pool][worker.machine] += 1
            self.counts[worker.pool] += 1
            self.release(worker)

    def leave(self, name: str) -> Worker | None:
        """Remove a worker, and return it; None if it has left before."""
        worker = self._workers.get(name)
        if worker is not None:
            self.take(worker)
            del self._workers[name]
            if worker.machine not in self._aside:
                self._forget(worker.pool, worker.machine, 1)
        return worker

    def put_aside(self, machine: str) -> None:
        """Give no more tasks to the workers of a machine."""
        self._aside.add(machine)
        for pool, machines in self._machines.items():
            self._forget(pool, machine, machines[machine])
        for worker in self._workers.values():
            if worker.machine == machine:
                self.take(worker)

    def take(self, worker: Worker) -> None:
        """Count a worker as busy."""
        machines = self._free[worker.pool]
        if machines.get(worker.machine, {}).pop(worker.name, None):
            self.free_count -= 1
            if not machines[worker.machine]:
                del machines[worker.machine]

    def release(self, worker: Worker) -> None:
        """Count a worker as free, unless it left or its machine was put aside."""
        if self._workers.get(worker.name) == worker and worker.machine not in self._aside:
            self._free[worker.pool].setdefault(worker.machine, {})[worker.name] = worker
            self.free_count += 1

    def choose(
        self, requires: Requirement, *, only: str, near: str, avoids: Collection[str]
    ) -> Worker | None:
        """Return the preferred free worker for a task; None if all that fit are busy.

        `only` is the machine that it must run on, if any; `near` the one that has its input;
        `avoids` those that lost it, which are used if no other machine fits.
        """
        if avoids and not self.fits(requires, without=avoids):
            avoids = ()
        for pool in self.choice(requires):
            machines = self._free[pool]
            preferred = [machine for machine in (only or near,) if machine in machines]
            for machine in preferred if only else (*preferred, *machines):
                if machine not in avoids:
                    return next(iter(machines[machine].values()))
        return None

    def choice(self, requires: Requirement) -> list[Pool]:
        """Return the pools whose workers may run a task, in order of preference."""
        if requires not in self._choices:
            self._choices[requires] = requires.choice(self._pools)
        return self._choices[requires]

    def _forget(self, pool: Pool, machine: str, number: int) -> None:
        machines = self._machines[pool]
        self.changes += 1
        self.counts[pool] -= number
        machines[machine] -= number
        if not machines[machine]:
            del machines[machine]


class Losses:
    """Unexplained losses of workers: by task, and by machine since it last completed a task.

    `aside` are the machines to put aside, each with the tasks that were lost on it.
    """

    def __init__(self) -> None:
        self._machines: dict[str, list[str]] = defaultdict(list)
        self._tasks: dict[str, dict[str, None]] = defaultdict(dict)
        self.aside: dict[str, tuple[str, ...]] = {}

    def machines(self, task: str) -> frozenset[str]:
        """Return the machines on which a task was lost."""
        return frozenset(self._machines.get(task, ()))

    def count(self, task: str) -> int:
        """Return how often a task was lost."""
        return len(self._machines.get(task, ()))

    def add(self, task: str, machine: str, *, sound: bool = False) -> None:
        """Note that a worker was lost while it ran a task; a `sound` machine is not to blame."""
        self._machines[task].append(machine)
        if not sound:
            self._tasks[machine][task] = None
        if len(self._tasks[machine]) >= MOST_LOSSES:
            self.aside.setdefault(machine, tuple(self._tasks[machine]))

    def completed(self, machine: str) -> None:
        """Note that a machine completed a task: what was lost there before no longer counts."""
        self._tasks.pop(machine, None)
