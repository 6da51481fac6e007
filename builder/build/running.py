"""Threads for a schedule; and how long tasks take: measured now, expected in the next run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from builder.build.schedule import Schedule, Task
from builder.model.errors import Interrupted
from builder.system.atomic import write_atomically
from builder.system.interruptions import interruptions
from builder.system.locks import locked

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
