"""Processes of builders that were killed: found by a mark in their environment, and ended.

A builder holds a lock of its own for as long as it lives, and every program that it starts has
the lock's name in its environment, as have the programs that these start. What runs inside a
container has another environment: it is found as a descendant, by its session, or, when no other
builder works on the same home, by a root folder in it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from builder.system.descendants import descendants, is_alive
from builder.system.locks import locked, locked_now

MARK = "BUILD_IMAGES_BUILDER"
_GONE_S = 10.0


@contextlib.contextmanager
def living(folder: Path) -> Iterator[str]:
    """Hold a builder's lock while it works; yield the mark for the programs that it starts."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    with contextlib.ExitStack() as stack:
        path = Path()
        while not path.is_file():  # another may have taken a lock for a dead one's, and removed it
            stack.close()
            name = f"builder-{secrets.token_hex(8)}"
            stack.enter_context(locked(folder, name))
            path = folder / f".{name}.lock"
        try:
            yield str(path)
        finally:
            path.unlink(missing_ok=True)


def end_orphans(folder: Path, *, home: Path | None = None) -> int:
    """End the processes of dead builders of this folder, and return their number.

    With `home`, whose builders must all be dead, processes with their root in the containers there
    are ended too.
    """
    folder, home = folder.resolve(), home and home.resolve()
    victims: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (_is_orphan(entry, folder) or (home and _runs_in(entry, home))):
            for pid in (int(entry.name), *descendants(int(entry.name))):
                if pid not in victims and pid != os.getpid():
                    # A handle: the number cannot come to mean another process then.
                    with contextlib.suppress(OSError):
                        victims[pid] = os.pidfd_open(pid)
    for handle in victims.values():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    deadline = time.monotonic() + _GONE_S
    while time.monotonic() < deadline and any(map(is_alive, victims)):
        time.sleep(0.02)
    for handle in victims.values():
        os.close(handle)
    for path in folder.glob(".builder-*.lock"):
        _is_dead(path, remove=True)
    return len(victims)


def _is_orphan(process: Path, folder: Path) -> bool:
    """Return whether a process has the mark of a dead builder of a folder."""
    try:
        words = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    prefix = f"{MARK}=".encode()
    marks = [word.removeprefix(prefix) for word in words if word.startswith(prefix)]
    path = Path(marks[0].decode(errors="surrogateescape")) if marks else Path()
    return path.parent == folder and path.name.startswith(".") and _is_dead(path)


def _is_dead(path: Path, *, remove: bool = False) -> bool:
    """Return whether nobody holds a builder's lock; it is removed only while it is held here."""
    if not path.exists():
        return True
    name = path.name.removeprefix(".").removesuffix(".lock")
    with locked_now(path.parent, name) as free:
        if free and remove:
            path.unlink(missing_ok=True)
        return free


def _runs_in(process: Path, home: Path) -> bool:
    try:
        root = str((process / "root").readlink())
    except OSError:
        return False
    return root.startswith((f"{home}/tmp/", f"{home}/storage/"))  # noqa: S108


R = TypeVar("R")


class Daemons:
    """A few threads at most that work on what they are handed, first come first.

    One may wait for a server that says nothing.
    """

    def __init__(self, most: int) -> None:
        self._most, self._running = most, 0
        self._lock = threading.Lock()
        self._todo: deque[Callable[[], object]] = deque()

    def begin(self, work: Callable[[], R]) -> Future[R]:
        """Have something worked on; it may be cancelled until that begins."""
        future: Future[R] = Future()
        with self._lock:
            self._todo.append(functools.partial(_settle, future, work))
            if self._running < self._most:
                self._running += 1
                threading.Thread(target=self._run, daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._todo:
                    self._running -= 1
                    return
                work = self._todo.popleft()
            work()


def _settle(future: Future[R], work: Callable[[], R]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # whoever takes the result is told
        future.set_exception(error)
