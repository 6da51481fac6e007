"""Which task comes next: what is ready, what there is room for, the longest path first.

No threads and no clock here: `Schedule` is told what started and what ended, and says what may
start. `builder.build.schedule` gives it threads.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from queue import Empty, SimpleQueue

from builder.model.errors import Interrupted
from builder.system.files import write_atomically
from builder.system.locks import locked
from builder.system.terminal import interruptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One piece of work. `needs` names the tasks that come before it.

    `after` names tasks that are better over first, whatever comes of them.
    `kind` is a word for what is done; tasks of the kinds that `Limits` calls builds count there.
    `label` says what it is to people; a name is only ever the task's own.
    `group` is what stays open from the start of its first task to the end of its last: an image's
    work folder. `seconds` is how long it is expected to take, `memory` and `disk` what it takes at
    most, in bytes.
    """

    name: str
    kind: str
    work: Callable[[], object] = field(compare=False)
    label: str = ""
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    group: str = ""
    emulated: bool = False
    seconds: float = 1.0
    memory: int = 0
    disk: int = 0

    @property
    def follows(self) -> set[str]:
        """The tasks that have to be over before it starts."""
        return {*self.needs, *self.after}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much goes on at once: of all tasks, of `builds`, of emulated builds, of open groups.

    `memory` is in bytes; zero is no limit.
    """

    tasks: int
    builds: int
    emulated: int
    groups: int
    memory: int = 0
    build_kinds: frozenset[str] = frozenset({"base", "stage", "image"})


class Schedule:
    """The tasks of one run, and how far they are."""

    def __init__(self, tasks: Iterable[Task], limits: Limits) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._limits = limits
        self._waits = {name: task.follows for name, task in self._tasks.items()}
        self._next: dict[str, list[str]] = {name: [] for name in self._tasks}
        for name, waits in self._waits.items():
            for one in sorted(waits):
                self._next[one].append(name)
        self._path = longest_paths(self._tasks, self._next)
        self._ready = {name for name, needs in self._waits.items() if not needs}
        self._running: dict[str, Task] = {}
        self._left: dict[str, int] = {}  # tasks that are not over, by group
        for task in self._tasks.values():
            self._left[task.group] = self._left.get(task.group, 0) + 1
        self._open: set[str] = set()

    @property
    def is_over(self) -> bool:
        """True if nothing runs and nothing is left."""
        return not self._ready and not self._running

    def start(self, *, free_disk: int = 0) -> list[Task]:
        """The tasks to start now, which count as running from here on.

        `free_disk` is what is free now, in bytes; zero is no limit. A task for which there is no
        room at all starts when nothing else runs.
        """
        # What is begun is gone on with first: two builders that each held an image and waited for
        # the other's would wait for ever.
        ready = sorted(
            self._ready,
            key=lambda one: (self._tasks[one].group not in self._open, -self._path[one], one),
        )
        started = [self._tasks[name] for name in ready if self._begin(name, free_disk)]
        if ready and not self._running:
            started.append(self._tasks[ready[0]])
            self._occupy(ready[0])
        return started

    def _begin(self, name: str, free_disk: int) -> bool:
        if len(self._running) >= self._limits.tasks or not self._fits(self._tasks[name], free_disk):
            return False
        self._occupy(name)
        return True

    def _occupy(self, name: str) -> None:
        self._ready.discard(name)
        self._running[name] = self._tasks[name]
        self._open.add(self._tasks[name].group)

    def done(self, name: str) -> None:
        """A task came to its end."""
        self._over(name)
        self._awaited(name)

    def failed(self, name: str) -> list[Task]:
        """A task failed; the tasks that will not be, since they come after it."""
        self._over(name)
        dropped: dict[str, Task] = {}
        todo = self._needing(name)
        while todo:
            one = todo.pop()
            if one in self._waits and one not in dropped:
                dropped[one] = self._tasks[one]
                todo += self._needing(one)
        for one in dropped:
            self._over(one)
        for one in (name, *dropped):
            self._awaited(one)
        return list(dropped.values())

    def _needing(self, name: str) -> list[str]:
        return [one for one in self._next[name] if name in self._tasks[one].needs]

    def _awaited(self, name: str) -> None:
        """A task is over: others may be ready now."""
        for following in self._next[name]:
            if following in self._waits:  # and not given up for another that failed
                self._waits[following].discard(name)
                if not self._waits[following]:
                    self._ready.add(following)

    def _over(self, name: str) -> None:
        self._running.pop(name, None)
        if self._waits.pop(name, None) is None:
            return
        group = self._tasks[name].group
        self._left[group] -= 1
        if not self._left[group]:
            self._open.discard(group)

    def _fits(self, task: Task, free_disk: int) -> bool:
        limits, running = self._limits, self._running.values()
        kinds = limits.build_kinds
        if task.kind in kinds:
            if sum(one.kind in kinds for one in running) >= limits.builds:
                return False
            if task.emulated and _emulated_builds(running, kinds) >= limits.emulated:
                return False
        if task.group and task.group not in self._open and self._groups() >= limits.groups:
            return False
        if limits.memory and task.memory + sum(one.memory for one in running) > limits.memory:
            return False
        return not free_disk or task.disk + sum(one.disk for one in running) <= free_disk

    def _groups(self) -> int:
        return len(self._open - {""})


def _emulated_builds(running: Iterable[Task], kinds: frozenset[str]) -> int:
    return sum(one.emulated and one.kind in kinds for one in running)


def longest_paths(
    tasks: Mapping[str, Task], following: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """The seconds from the start of each task to the end of the longest path that begins with it.

    Raises `ValueError` for tasks that wait for each other.
    """
    try:
        order = list(TopologicalSorter({name: following[name] for name in tasks}).static_order())
    except CycleError as error:
        raise ValueError(f"tasks wait for each other: {sorted(set(error.args[1]))}") from error
    paths: dict[str, float] = {}
    for name in order:  # the last ones first
        after = max((paths[one] for one in following[name]), default=0.0)
        paths[name] = tasks[name].seconds + after
    return paths


_POLL_S = 0.5  # how often free disk space is looked at while nothing ends
_FILE = "durations.json"
_MOST = 20_000  # durations that are kept, the newest

# Called in the main thread when a task is over: with its error, and what will not be for that.
OnEnd = Callable[[Task, BaseException | None, Sequence[Task]], None]


def run_all(
    schedule: Schedule,
    *,
    threads: int,
    on_end: OnEnd,
    stop: Callable[[], None],
    free_disk: Callable[[], int] = lambda: 0,
) -> None:
    """Run all tasks of a schedule; one that fails stops only those that come after it.

    On Ctrl-C, and when a task raises `Interrupted`, `stop` has to make the running ones end.
    """
    ended: SimpleQueue[Future[object] | None] = SimpleQueue()  # None: an interruption
    running: dict[Future[object], Task] = {}
    executor = ThreadPoolExecutor(max_workers=threads)
    with interruptions(lambda: ended.put(None)):
        try:
            while not schedule.is_over:
                for task in schedule.start(free_disk=free_disk()):
                    future = executor.submit(task.work)
                    running[future] = task
                    future.add_done_callback(ended.put)
                try:
                    future = _uninterrupted(ended.get(timeout=_POLL_S))
                except Empty:
                    continue
                _settle(schedule, running.pop(future), future.exception(), on_end)
        except BaseException:
            stop()
            executor.shutdown(wait=True, cancel_futures=True)
            raise
        executor.shutdown()


def _uninterrupted(future: Future[object] | None) -> Future[object]:
    if future is None:
        raise KeyboardInterrupt
    return future


def _settle(schedule: Schedule, task: Task, error: BaseException | None, on_end: OnEnd) -> None:
    if isinstance(error, Interrupted) or (error and not isinstance(error, Exception)):
        raise error
    dropped: Sequence[Task] = ()
    if error is None:
        schedule.done(task.name)
    else:
        dropped = schedule.failed(task.name)
    on_end(task, error, dropped)


@dataclass(frozen=True, kw_only=True, slots=True)
class Durations:
    """Seconds that tasks took, by label: `known` of earlier runs, `measured` in this one."""

    known: Mapping[str, float]
    measured: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, home: Path) -> Durations:
        """Those of earlier runs; a file that cannot be read is none."""
        return cls(known=_read(home))

    def keep(self, home: Path) -> None:
        """Keep what was measured beside what others measured meanwhile."""
        if not self.measured:
            return
        with contextlib.suppress(OSError), locked(home, "durations"):
            found = {name: one for name, one in _read(home).items() if name not in self.measured}
            newest = dict([*found.items(), *self.measured.items()][-_MOST:])
            write_atomically(home / _FILE, json.dumps(newest, indent=0) + "\n")


def _read(home: Path) -> dict[str, float]:
    try:
        found = json.loads((home / _FILE).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: float(one) for name, one in found.items() if isinstance(one, (int, float))}
