"""Locks between builders that share a store: held by the kernel, so none outlives its holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from builder.model.errors import Interrupted

_POLL_S = 0.1
_MOMENT_S = 1.0
# For writing: NFS hands only locks of such files to its server (flock(2)).
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def locked(
    folder: Path,
    name: str,
    *,
    waiting: Callable[[], object] = lambda: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Hold the lock of one thing in a folder; waits while another process or thread holds it.

    `waiting` is called once if that takes more than a moment. Raises `Interrupted` when it is
    `stopped` meanwhile. Its file is gone with the lock: there are as many names as blobs.
    """
    path = _path(folder, name)
    with contextlib.ExitStack() as held:
        while True:
            file = held.enter_context(_opened(folder, name))
            _take(file, fcntl.LOCK_EX, waiting, stopped)
            if is_at(file.fileno(), path):
                break
            held.close()  # who held it has removed the file, and another may be locked by now
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class Turn:
    """A place in a folder's lock that many hold together, or one alone."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """A time in which nobody else has a place, if that is so now.

        Only for when nothing is under way: another may be alone for a moment before and after it.
        """
        alone = _try(self._file, fcntl.LOCK_EX)
        try:
            yield alone
        finally:
            fcntl.flock(self._file, fcntl.LOCK_SH)


@contextlib.contextmanager
def together(
    folder: Path,
    name: str,
    *,
    waiting: Callable[[], object] = lambda: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Turn]:
    """A place among those who hold a lock together; waits while one holds it alone."""
    with _opened(folder, name) as file:
        _take(file, fcntl.LOCK_SH, waiting, stopped)
        yield Turn(file)


@contextlib.contextmanager
def locked_now(folder: Path, name: str) -> Iterator[bool]:
    """Hold a lock alone if nobody holds it now; whether that is so. Does not wait."""
    with _opened(folder, name) as file:
        yield _try(file, fcntl.LOCK_EX)


@contextlib.contextmanager
def _opened(folder: Path, name: str) -> Iterator[IO[str]]:
    folder.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(_path(folder, name), _FLAGS, 0o666), "r+") as file:
        yield file


def _path(folder: Path, name: str) -> Path:
    return folder / f".{name}.lock"


def _take(
    file: IO[str], how: int, waiting: Callable[[], object], stopped: Callable[[], bool]
) -> None:
    start, told = time.monotonic(), False
    while not _try(file, how):
        if stopped():
            raise Interrupted("interrupted")
        if not told and time.monotonic() - start > _MOMENT_S:
            waiting()
            told = True
        time.sleep(_POLL_S)


def is_at(handle: int, path: Path) -> bool:
    """Whether an open file is still the one at a path: another may have removed or replaced it."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except OSError:  # it is gone; a server of files may say that the handle is stale
        return False


def _try(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
