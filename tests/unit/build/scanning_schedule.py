"""A schedule for one machine that scans all tasks each time: the order that `Schedule` has to keep.

It is slow and short. Its tasks end by their names, and every result counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from builder.build.tasks import BUILD_KINDS, Task, TaskLimits, longest_paths


class ScanningSchedule:
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
        return not self._pending and not self._running

    def start(self, *, free_disk: int = 0) -> list[Task]:
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
        task = self._running.pop(name, None) or self._pending.pop(name)
        self._over.add(name)
        others = (*self._pending.values(), *self._running.values())
        if all(other.group != task.group for other in others):
            self._open.discard(task.group)

    def failed(self, name: str) -> list[Task]:
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
