"""Find and end processes of builders that were killed, by a mark in their environment.

A builder holds its own lock while it runs. All programs that it starts, and their descendants,
have the lock's name in their environment. Processes in containers have a different environment:
they are found as descendants, by their session, or, if no other builder uses the same home, by
their root folder in it.
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
    """Hold a builder's lock while it runs; yield the mark for the programs that it starts."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    with contextlib.ExitStack() as stack:
        path = Path()
        while not path.is_file():  # another builder may have removed the lock as a dead builder's
            stack.close()
            name = f"builder-{secrets.token_hex(8)}"
            stack.enter_context(locked(folder, name))
            path = folder / f".{name}.lock"
        try:
            yield str(path)
        finally:
            path.unlink(missing_ok=True)


def end_orphans(folder: Path, *, home: Path | None = None) -> int:
    """End the processes of dead builders in this folder, and return their number.

    With `home`, whose builders must all be dead, processes with a root folder in its containers are
    ended, too.
    """
    folder, home = folder.resolve(), home and home.resolve()
    victims: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (_is_orphan(entry, folder) or (home and _runs_in(entry, home))):
            for pid in (int(entry.name), *descendants(int(entry.name))):
                if pid not in victims and pid != os.getpid():
                    # A handle, since the process number may be reused for another process.
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
    """Return whether no process holds a builder's lock; with `remove`, remove a free lock."""
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
    """At most `most` daemon threads that do work in the order of its arrival.

    The program can end while a thread still waits for a silent server.
    """

    def __init__(self, most: int) -> None:
        self._most, self._running = most, 0
        self._lock = threading.Lock()
        self._todo: deque[Callable[[], object]] = deque()

    def begin(self, work: Callable[[], R]) -> Future[R]:
        """Queue work and return its future, which can be cancelled until the work begins."""
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
    except BaseException as error:  # raised again where the result is used
        future.set_exception(error)
