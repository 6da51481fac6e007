"""The tasks of a run, the limits of this machine, how long tasks take, and which is next.

`Durations` stores the seconds that tasks took for the next run. Ready tasks wait in lanes, so that
the next task is selected without a look at all of them. Tasks of open groups come first, then those
that lead to scarce workers, then those with the longest path.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from pathlib import Path

from builder.build.workers import ANYWHERE, Pool, Requirement, Slots
from builder.model.errors import MissingPrerequisite
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
        with contextlib.suppress(OSError, MissingPrerequisite), locked(home, "durations"):
            known = {name: s for name, s in _read(home).items() if name not in self.measured}
            newest = dict([*known.items(), *self.measured.items()][-_MOST:])
            write_atomically(home / _FILE, json.dumps(newest, indent=0) + "\n")


def _read(home: Path) -> dict[str, float]:
    known = read_json(home / _FILE).items()
    return {name: float(seconds) for name, seconds in known if isinstance(seconds, (int, float))}


# ---- Ready tasks, in the order in which they start ----


@dataclass(eq=False, kw_only=True, slots=True)
class Lane:
    """Ready tasks that wait for the same: if the first of a lane cannot start, no other can.

    `only` is the machine that they must run on, if any; `avoids` those that lost them. `leads` are
    the requirements, by number, of the tasks and of all that follow them. `heap` also has the
    ranks of tasks that have left the lane.
    """

    leads: frozenset[int]
    opens: bool  # a group
    only: str
    avoids: frozenset[str]
    heap: list[_Rank] = field(default_factory=list)


_Rank = tuple[bool, float, str]  # the smallest starts first
_LaneKey = tuple[object, ...]  # what the tasks of a lane have in common


class ReadyTasks:
    """The ready tasks of a run, and the groups that are open.

    If tasks without a group are `grouped`, they count as those of one group.
    """

    def __init__(self, tasks: Mapping[str, Task], slots: Slots, *, grouped: bool) -> None:
        self._tasks = tasks
        order = in_order(tasks)
        self._paths = longest_paths(tasks, order)
        self._workload = _Workload(tasks, order, slots)
        self._never_open = frozenset() if grouped else frozenset({""})
        self._open: set[str] = set()
        self._opened: list[str] = []  # since `reorder`
        self._lane_of: dict[str, Lane] = {}
        self._in_group: dict[str, dict[str, None]] = defaultdict(dict)
        self._lanes: dict[_LaneKey, Lane] = {}

    @property
    def open_groups(self) -> Collection[str]:
        """The named groups that are open."""
        return self._open - {""}

    @property
    def names(self) -> list[str]:
        """The names of all ready tasks."""
        return list(self._lane_of)

    def opens(self, task: Task) -> bool:
        """Return whether the start of a task opens a group."""
        return bool(task.group) and task.group not in self._open

    def add(self, task: Task, *, only: str = "", avoids: frozenset[str] = frozenset()) -> None:
        """Add a ready task; one that is ready already changes its lane."""
        self._in_group[task.group][task.name] = None
        self._push(task, self._lane(task, only, avoids), is_open=task.group in self._open)

    def _lane(self, task: Task, only: str, avoids: frozenset[str]) -> Lane:
        leads, opens = self._workload.leads[task.name], self.opens(task)
        needed = (task.requires, task.kind in BUILD_KINDS, task.emulated, task.memory, task.disk)
        key = (*needed, leads, opens, only, avoids)
        if key not in self._lanes:
            self._lanes[key] = Lane(leads=leads, opens=opens, only=only, avoids=avoids)
        return self._lanes[key]

    def remove(self, task: Task) -> None:
        """Remove a task, if it is ready."""
        self._lane_of.pop(task.name, None)
        self._in_group[task.group].pop(task.name, None)

    def end(self, task: Task) -> None:
        """Note that a task ended: it is not ready, and its work does not remain."""
        self.remove(task)
        self._workload.end(task)

    def bound_to(self, machine: str) -> list[str]:
        """Return the names of the tasks that must run on a machine."""
        return [name for name, lane in self._lane_of.items() if lane.only == machine]

    def open(self, group: str) -> None:
        """Open a group. Its ready tasks may start, and keep their rank until `reorder`."""
        if group not in self._open and group not in self._never_open:
            self._open.add(group)
            self._opened.append(group)
            self._push_all(self._in_group[group] if group else (), is_open=False)

    def close(self, group: str) -> None:
        self._open.discard(group)

    def reorder(self) -> None:
        """Let the tasks of groups that opened come first."""
        for group in self._opened:
            self._push_all(self._in_group[group], is_open=True)
        self._opened.clear()

    def firsts(self, blocked: Collection[Lane]) -> list[tuple[Task, Lane]]:
        """Return the first task of each lane that is not blocked, in the order of all tasks."""
        heads = [
            ((rank[0], -self._workload.urgency(lane.leads)), rank, lane)
            for key, lane in [*self._lanes.items()]
            if lane not in blocked and (rank := self._head(key, lane))
        ]
        return [(self._tasks[name], lane) for _, (*_, name), lane in sorted(heads)]

    def _head(self, key: _LaneKey, lane: Lane) -> _Rank | None:
        while lane.heap and self._lane_of.get(lane.heap[0][-1]) is not lane:
            heappop(lane.heap)
        if not lane.heap:
            del self._lanes[key]
            return None
        return lane.heap[0]

    def _push_all(self, names: Collection[str], *, is_open: bool) -> None:
        for name in names:
            task, lane = self._tasks[name], self._lane_of[name]
            if lane.opens != self.opens(task):
                lane = self._lane(task, lane.only, lane.avoids)
            self._push(task, lane, is_open=is_open)

    def _push(self, task: Task, lane: Lane, *, is_open: bool) -> None:
        self._lane_of[task.name] = lane
        heappush(lane.heap, (not is_open, -self._paths[task.name], task.name))


class _Workload:
    """The work that remains, by where it may run, for each of the workers there."""

    def __init__(self, tasks: Mapping[str, Task], order: Sequence[str], slots: Slots) -> None:
        self._slots = slots
        self._numbers: dict[Requirement, int] = {}
        self._seconds: list[float] = []  # by the number of the requirement
        self._urgency: list[float] = []  # the same, as things are now
        self._changes = -1  # of the workers, when the shares were found
        self._shares: list[tuple[Sequence[int], int]] = []  # requirements, and their workers
        self._share_of: list[int] = []  # by the number of the requirement
        self.leads: dict[str, frozenset[int]] = {}
        leads: dict[str, set[int]] = defaultdict(set)
        for name in reversed(order):
            task = tasks[name]
            number = self._numbers.setdefault(task.requires, len(self._numbers))
            self._seconds += [0.0] * (number == len(self._seconds))
            self._seconds[number] += task.seconds
            self.leads[name] = frozenset({number, *leads.pop(name, ())})
            for earlier in task.follows:
                leads[earlier] |= self.leads[name]

    def end(self, task: Task) -> None:
        """Note that a task ended."""
        self._seconds[self._numbers[task.requires]] -= task.seconds
        self._urgency.clear()

    def urgency(self, leads: frozenset[int]) -> float:
        """Return how long workers have to work for what leads to them, as things are now.

        Workers are scarce if the work that only they may do takes longer than all work takes on all
        workers. What leads to them comes first, so that they never wait. Among other tasks the
        order does not depend on workers.
        """
        if self._changes != self._slots.changes:
            self._find_shares()
        if not self._urgency:
            loads = [
                sum(map(self._seconds.__getitem__, share)) / workers
                for share, workers in self._shares
            ]
            self._urgency = [max(loads[0], loads[index]) for index in self._share_of]
        return max(map(self._urgency.__getitem__, leads))

    def _find_shares(self) -> None:
        """Find the work that only some workers may do, after a change of workers."""
        self._changes = self._slots.changes
        self._urgency.clear()
        choices = [frozenset(self._slots.choice(requires)) for requires in self._numbers]
        shares = [frozenset[Pool]().union(*choices), *dict.fromkeys(choices)]  # all work first
        self._share_of = [shares.index(choice, 1) for choice in choices]
        self._shares = [
            (
                [number for number, other in enumerate(choices) if other <= share],
                max(1, sum(self._slots.counts[pool] for pool in share)),
            )
            for share in shares
        ]
