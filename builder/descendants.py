"""A process with everything that it started: found in /proc, and ended together."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path


def end_tree(pid: int, *, grace_s: float) -> None:
    """End a process and all of its descendants: SIGTERM, then SIGKILL after `grace_s` seconds."""
    victims = [pid, *descendants(pid)]
    _signal_all(victims, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(is_alive(victim) for victim in victims):
        time.sleep(0.05)
    _signal_all([*victims, *descendants(pid)], signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, from /proc: by parent, and by session for those re-parented."""
    parents: dict[int, list[int]] = {}
    session: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
            if int(fields[3]) == pid:
                session.append(int(entry.name))
    found: list[int] = []
    todo = [pid, *session]
    while todo:
        for child in parents.get(todo.pop(), []):
            if child not in found:
                found.append(child)
                todo.append(child)
    return [one for one in dict.fromkeys([*session, *found]) if one != pid]


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only waits for its parent to notice its end."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"
