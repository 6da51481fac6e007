"""The order of tasks: of the ready tasks within the limits, the longest path starts first.

`Schedule` has no threads and no clock: its caller reports ended tasks, and it selects the next.
`run_all` has the threads; `Durations` stores how long tasks took, in seconds, for the next run.
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
from builder.system.files import read_json, write_atomically
from builder.system.locks import locked
from builder.system.terminal import interruptions

BUILD_KINDS = frozenset({"base", "stage", "image"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One piece of work. `needs` names the tasks that must succeed before it.

    `after` names tasks that must end before it, whether they succeed or fail.
    `kind` is the kind of work; the kinds in `BUILD_KINDS` are builds.
    `label` is its name for people, which other tasks may have, too; `name` is unique.
    `group` is a resource that is open from the start of its first task to the end of its last, such
    as an image's work folder. `seconds` is the expected duration; `memory` and `disk` are the most
    that it takes, in bytes.
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
        """The tasks that must have ended before it starts."""
        return {*self.needs, *self.after}


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskLimits:
    """The most that may run at once: tasks, builds, emulated builds, and open groups.

    `memory` is in bytes; zero is no limit.
    """

    tasks: int
    builds: int
    emulated: int
    groups: int
    memory: int = 0


class Schedule:
    """The tasks of one run, and their progress."""

    def __init__(self, tasks: Iterable[Task], limits: TaskLimits) -> None:
        self._limits = limits
        self._pending = {task.name: task for task in tasks}
        self._running: dict[str, Task] = {}
        self._over: set[str] = set()
        self._open: set[str] = set()  # groups
        self._path = longest_paths(self._pending)

    @property
    def is_over(self) -> bool:
        """True if nothing runs and nothing remains."""
        return not self._pending and not self._running

    def start(self, *, free_disk: int = 0) -> list[Task]:
        """Return the tasks to start now, which count as running from here on.

        `free_disk` is what is free now, in bytes; zero is no limit. A task that exceeds a limit by
        itself starts when nothing else runs.
        """
        # Open groups come first: two builders that each held an image and waited for the other's
        # would wait for ever.
        ready = sorted(
            (task for task in self._pending.values() if task.follows <= self._over),
            key=lambda task: (task.group not in self._open, -self._path[task.name], task.name),
        )
        started = [task for task in ready if self._fits(task, free_disk) and self._begin(task)]
        if ready and not self._running:
            started = [task for task in ready[:1] if self._begin(task)]
        return started

    def _begin(self, task: Task) -> Task:
        self._running[task.name] = self._pending.pop(task.name)
        self._open.add(task.group)
        return task

    def done(self, name: str) -> None:
        """Note that a task ended."""
        task = self._running.pop(name, None) or self._pending.pop(name)
        self._over.add(name)
        others = (*self._pending.values(), *self._running.values())
        if all(other.group != task.group for other in others):
            self._open.discard(task.group)

    def failed(self, name: str) -> list[Task]:
        """Note that a task failed; return the tasks that are dropped because they need it."""
        dropped: dict[str, Task] = {}
        lost = {name}
        while lost:
            needing = [task for task in self._pending.values() if lost & {*task.needs}]
            lost = {task.name for task in needing} - dropped.keys()
            dropped.update({task.name: task for task in needing})
        for over in (name, *dropped):
            self.done(over)
        return list(dropped.values())

    def _fits(self, task: Task, free_disk: int) -> bool:
        limits, running = self._limits, self._running.values()
        builds = [other for other in running if other.kind in BUILD_KINDS]
        emulated = sum(other.emulated for other in builds)
        is_build = task.kind in BUILD_KINDS
        opens = bool(task.group) and task.group not in self._open
        memory = task.memory + sum(other.memory for other in running)
        disk = task.disk + sum(other.disk for other in running)
        return not (
            len(running) >= limits.tasks
            or (is_build and len(builds) >= limits.builds)
            or (is_build and task.emulated and emulated >= limits.emulated)
            or (opens and len(self._open - {""}) >= limits.groups)
            or (limits.memory and memory > limits.memory)
            or (free_disk and disk > free_disk)
        )


def longest_paths(tasks: Mapping[str, Task]) -> dict[str, float]:
    """Return the seconds of the longest path that begins with each task.

    Raises `ValueError` for tasks that wait for each other.
    """
    sorter = TopologicalSorter({task.name: task.follows for task in tasks.values()})
    try:
        order = list(sorter.static_order())
    except CycleError as error:
        raise ValueError(f"tasks wait for each other: {sorted(set(error.args[1]))}") from error
    after = dict.fromkeys(tasks, 0.0)
    for name in reversed(order):
        for earlier in tasks[name].follows:
            after[earlier] = max(after[earlier], tasks[name].seconds + after[name])
    return {name: task.seconds + after[name] for name, task in tasks.items()}


_POLL_S = 0.5  # how often free disk space is looked at while nothing ends
_FILE = "durations.json"
_MOST = 20_000  # durations that are kept, the newest

# Called in the main thread when a task ends: with its error, and the tasks dropped because of it.
OnEnd = Callable[[Task, BaseException | None, Sequence[Task]], None]


def run_all(
    schedule: Schedule,
    *,
    threads: int,
    on_end: OnEnd,
    stop: Callable[[], None],
    free_disk: Callable[[], int] = lambda: 0,
) -> None:
    """Run all tasks of a schedule; if one fails, only the tasks that need it are dropped.

    On Ctrl-C, and when a task raises `Interrupted`, `stop` must end the running tasks.
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
                with contextlib.suppress(Empty):
                    _settle(schedule, running, ended.get(timeout=_POLL_S), on_end)
        except BaseException:
            stop()
            executor.shutdown(wait=True, cancel_futures=True)
            raise
        executor.shutdown()


def _settle(
    schedule: Schedule,
    running: dict[Future[object], Task],
    ended: Future[object] | None,
    on_end: OnEnd,
) -> None:
    if ended is None:
        raise KeyboardInterrupt
    task, error = running.pop(ended), ended.exception()
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
    """Seconds that tasks took, by label: `known` from earlier runs, `measured` in this one."""

    known: Mapping[str, float]
    measured: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, home: Path) -> Durations:
        """Read the durations of earlier runs; none if the file cannot be read."""
        return cls(known=_read(home))

    def keep(self, home: Path) -> None:
        """Add the measured durations to those that other builders wrote meanwhile."""
        if not self.measured:
            return
        with contextlib.suppress(OSError), locked(home, "durations"):
            known = {name: s for name, s in _read(home).items() if name not in self.measured}
            newest = dict([*known.items(), *self.measured.items()][-_MOST:])
            write_atomically(home / _FILE, json.dumps(newest, indent=0) + "\n")


def _read(home: Path) -> dict[str, float]:
    known = read_json(home / _FILE).items()
    return {name: float(seconds) for name, seconds in known if isinstance(seconds, (int, float))}
