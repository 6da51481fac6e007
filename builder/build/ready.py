"""Ready tasks, in the order in which they start.

They wait in lanes, so that the next task is selected without a look at all of them. Tasks of open
groups come first, then those that lead to scarce workers, then those with the longest path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from builder.build.tasks import BUILD_KINDS, Task, in_order, longest_paths
from builder.build.workers import Pool, Requirement, Slots


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """Ready tasks that wait for the same: if the first of a lane cannot start, no other can.

    `only` is the machine that they must run on, if any; `avoids` those that lost them.
    """

    requires: Requirement
    leads: frozenset[Requirement]  # those of the tasks and of all that follow them
    is_build: bool
    emulated: bool
    memory: int
    disk: int
    opens: bool  # a group
    only: str
    avoids: frozenset[str]


_Rank = tuple[bool, float, str]  # the smallest starts first


class ReadyTasks:
    """The ready tasks of a run, and the groups that are open.

    If tasks without a group are `grouped`, they count as those of one group.
    """

    def __init__(self, tasks: Mapping[str, Task], slots: Slots, *, grouped: bool) -> None:
        self._tasks = tasks
        self._paths = longest_paths(tasks)
        self._workload = _Workload(tasks, slots)
        self._never_open = frozenset() if grouped else frozenset({""})
        self._open: set[str] = set()
        self._opened: list[str] = []  # since `reorder`
        self._lane_of: dict[str, Lane] = {}
        self._in_group: dict[str, dict[str, None]] = defaultdict(dict)
        self._heaps: dict[Lane, list[_Rank]] = {}  # some of their tasks have left the lane

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
        lane = Lane(
            requires=task.requires,
            leads=self._workload.leads[task.name],
            is_build=task.kind in BUILD_KINDS,
            emulated=task.emulated,
            memory=task.memory,
            disk=task.disk,
            opens=self.opens(task),
            only=only,
            avoids=avoids,
        )
        self._push(task, lane, is_open=task.group in self._open)

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
        if group not in self._open | self._never_open:
            self._open.add(group)
            self._opened.append(group)
            self._push_all(self._in_group[group] if group else (), is_open=False)

    def close(self, group: str) -> None:
        """Close a group."""
        self._open.discard(group)

    def reorder(self) -> None:
        """Let the tasks of groups that opened come first."""
        for group in self._opened:
            self._push_all(self._in_group[group], is_open=True)
        self._opened.clear()

    def first(self, blocked: Collection[Lane]) -> tuple[Task, Lane] | None:
        """Return the task that comes first, and its lane; lanes may be blocked."""
        lanes = [lane for lane in self._heaps if lane not in blocked]
        heads = [(rank, lane) for lane in lanes if (rank := self._head(lane))]
        if not heads:
            return None
        urgency = self._workload.urgency()
        _, (*_, name), lane = min(
            ((rank[0], -urgency(lane.leads)), rank, lane) for rank, lane in heads
        )
        return self._tasks[name], lane

    def _head(self, lane: Lane) -> _Rank | None:
        heap = self._heaps[lane]
        while heap and self._lane_of.get(heap[0][-1]) != lane:
            heappop(heap)
        if not heap:
            del self._heaps[lane]
            return None
        return heap[0]

    def _push_all(self, names: Collection[str], *, is_open: bool) -> None:
        for name in names:
            task, lane = self._tasks[name], self._lane_of[name]
            if lane.opens != self.opens(task):
                lane = replace(lane, opens=self.opens(task))
            self._push(task, lane, is_open=is_open)

    def _push(self, task: Task, lane: Lane, *, is_open: bool) -> None:
        self._lane_of[task.name] = lane
        rank = (not is_open, -self._paths[task.name], task.name)
        heappush(self._heaps.setdefault(lane, []), rank)


class _Workload:
    """The work that remains, by where it may run, for each of the workers there."""

    def __init__(self, tasks: Mapping[str, Task], slots: Slots) -> None:
        self._slots = slots
        self._seconds: dict[Requirement, float] = defaultdict(float)
        self.leads: dict[str, frozenset[Requirement]] = {}
        leads: dict[str, set[Requirement]] = defaultdict(set)
        for name in reversed(in_order(tasks)):
            task = tasks[name]
            self._seconds[task.requires] += task.seconds
            self.leads[name] = frozenset({task.requires, *leads.pop(name, ())})
            for earlier in task.follows:
                leads[earlier] |= self.leads[name]

    def end(self, task: Task) -> None:
        """Note that a task ended."""
        self._seconds[task.requires] -= task.seconds

    def urgency(self) -> Callable[[frozenset[Requirement]], float]:
        """Return how long workers have to work for what leads to them, as things are now.

        Workers are scarce if the work that only they may do takes longer than all work takes on all
        workers. What leads to them comes first, so that they never wait. Among other tasks the
        order does not depend on workers.
        """
        choices = {requires: frozenset(self._slots.choice(requires)) for requires in self._seconds}
        loads = {choice: self._load(choice, choices) for choice in {*choices.values()}}
        least = self._load(frozenset().union(*loads), choices)
        by_requirement = {requires: max(least, loads[choices[requires]]) for requires in choices}
        return lambda leads: max(map(by_requirement.__getitem__, leads))

    def _load(
        self, choice: frozenset[Pool], choices: Mapping[Requirement, frozenset[Pool]]
    ) -> float:
        seconds = [
            self._seconds[requires] for requires, other in choices.items() if other <= choice
        ]
        return sum(seconds) / max(1, sum(self._slots.counts[pool] for pool in choice))
