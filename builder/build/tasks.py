"""The tasks of a run, the limits of this machine, and how long tasks take.

`Durations` stores the seconds that tasks took for the next run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from builder.build.workers import ANYWHERE, Requirement
from builder.system.files import read_json, write_atomically
from builder.system.locks import locked

BUILD_KINDS = frozenset({"base", "stage", "image"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One piece of work. `needs` names the tasks that must succeed before it.

    `after` names tasks that must end before it, whether they succeed or fail.
    `kind` is the kind of work; the kinds in `BUILD_KINDS` are builds.
    `label` is its name for people, which other tasks may have, too; `name` is unique.
    `group` is a resource that is open from the start of its first task to the end of its last, such
    as an image's work folder. `seconds` is the expected duration; `memory` and `disk` are the most
    that it takes, in bytes. `image` is one of the images that need it, by identifier, and `number`
    that of the stage in it.
    """

    name: str
    kind: str
    work: Callable[[], object] = field(compare=False)
    label: str = ""
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    group: str = ""
    requires: Requirement = ANYWHERE
    emulated: bool = False
    seconds: float = 1.0
    memory: int = 0
    disk: int = 0
    image: str = ""
    number: int = 0

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


def in_order(tasks: Mapping[str, Task]) -> list[str]:
    """Return the names of tasks, each after those that it follows.

    Raises `ValueError` for tasks that wait for each other.
    """
    sorter = TopologicalSorter({task.name: task.follows for task in tasks.values()})
    try:
        return list(sorter.static_order())
    except CycleError as error:
        raise ValueError(f"tasks wait for each other: {sorted(set(error.args[1]))}") from error


def longest_paths(tasks: Mapping[str, Task], order: Sequence[str] = ()) -> dict[str, float]:
    """Return the seconds of the longest path that begins with each task.

    `order` are their names as `in_order` returns them, if they are known.
    """
    after = dict.fromkeys(tasks, 0.0)
    for name in reversed(order or in_order(tasks)):
        for earlier in tasks[name].follows:
            after[earlier] = max(after[earlier], tasks[name].seconds + after[name])
    return {name: task.seconds + after[name] for name, task in tasks.items()}


_FILE = "durations.json"
_MOST = 20_000  # durations that are kept, the newest


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
