"""What a builder that was killed left running: found by a mark in its environment, and ended.

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
    """The time in which this builder works; the mark that the programs it starts get."""
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
    """End what dead builders of this folder left running; how many processes that were.

    With `home`, whose builders must all be dead, what has its root in the containers there is
    ended too.
    """
    folder = folder.resolve()
    victims: dict[int, int] = {}
    for pid in _others():
        if _is_orphan(pid, folder) or (home is not None and _runs_in(pid, home.resolve())):
            for one in (pid, *descendants(pid)):
                _hold(one, victims)
    for handle in victims.values():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    _wait(victims)
    for handle in victims.values():
        os.close(handle)
    for path in folder.glob(".builder-*.lock"):
        _is_dead(path, remove=True)
    return len(victims)


def _hold(pid: int, victims: dict[int, int]) -> None:
    """Keep hold of a process: its number cannot come to mean another one then."""
    if pid not in victims and pid != os.getpid():
        with contextlib.suppress(OSError):
            victims[pid] = os.pidfd_open(pid)


def _is_orphan(pid: int, folder: Path) -> bool:
    mark = _mark(pid)
    if not mark.startswith(f"{folder}/."):
        return False
    return _is_dead(Path(mark))


def _mark(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    prefix = f"{MARK}=".encode()
    found = next((word for word in words if word.startswith(prefix)), b"")
    return found.removeprefix(prefix).decode(errors="surrogateescape")


def _is_dead(path: Path, *, remove: bool = False) -> bool:
    """Whether nobody holds a builder's lock. It is removed while it is held, or not at all."""
    if not path.exists():
        return True
    name = path.name.removeprefix(".").removesuffix(".lock")
    with locked_now(path.parent, name) as free:
        if free and remove:
            path.unlink(missing_ok=True)
        return free


def _runs_in(pid: int, home: Path) -> bool:
    try:
        root = str(Path(f"/proc/{pid}/root").readlink())
    except OSError:
        return False
    return root.startswith((f"{home}/tmp/", f"{home}/storage/"))  # noqa: S108


def _others() -> list[int]:
    names = (one.name for one in Path("/proc").iterdir())
    return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]


def _wait(victims: dict[int, int]) -> None:
    deadline = time.monotonic() + _GONE_S
    while time.monotonic() < deadline and any(map(is_alive, victims)):
        time.sleep(0.02)


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
