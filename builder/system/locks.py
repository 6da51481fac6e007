"""Locks between builders that share a store; the kernel releases a dead builder's locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from builder.model.errors import Interrupted, MissingPrerequisite
from builder.system.terminal import printable

_POLL_S = 0.1
_MOMENT_S = 1.0
_LONGEST = 500  # bytes of the holder of a lock
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}  # Lustre without the option flock
NO_LOCKS = "its file system has no locks"
_MOUNT = "mount it with flock, or name another folder: BUILD_IMAGES_HOME, --output"
# Opened for writing: only then does NFS forward the lock to its server (flock(2)).
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def locked(
    folder: Path,
    name: str,
    *,
    waiting: Callable[[str], object] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Hold the lock `name` in a folder; wait while another process or thread holds it.

    `waiting` gets the holder once if that takes more than a second. Raises `Interrupted` if
    `stopped` returns true meanwhile. The lock's file is removed at the end: each blob has its own.
    """
    path = lock_path(folder, name)
    with contextlib.ExitStack() as held:
        while True:
            file = held.enter_context(_opened(folder, name))
            try:
                _take(file, fcntl.LOCK_EX, waiting, stopped)
            except MissingPrerequisite:  # nobody can hold it
                path.unlink(missing_ok=True)
                raise
            if is_at(file.fileno(), path):
                break
            held.close()  # the last holder removed this file; others may lock a new one
        _sign(file)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def shared_lock(
    folder: Path,
    name: str,
    *,
    waiting: Callable[[str], object] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[IO[str]]:
    """Hold a shared lock; wait while another holds it exclusively, whom `waiting` gets."""
    with _opened(folder, name) as file:
        _take(file, fcntl.LOCK_SH, waiting, stopped)
        yield file


@contextlib.contextmanager
def try_exclusive(lock: IO[str]) -> Iterator[bool]:
    """Hold a shared lock exclusively if no one else holds it; yield whether it is exclusive.

    Only between units of work: another holder may be exclusive just before or after it.
    """
    if alone := _try(lock, fcntl.LOCK_EX):
        _sign(lock)
    try:
        yield alone
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)


@contextlib.contextmanager
def locked_now(folder: Path, name: str) -> Iterator[bool]:
    """Hold a lock exclusively if it is free; yield whether it was. Does not wait."""
    with _opened(folder, name) as file:
        if is_free := _try(file, fcntl.LOCK_EX):
            _sign(file)
        yield is_free


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Replace a file by an empty one, and lock it: it is being written to until this ends.

    On a file system without locks it is only replaced.
    """
    path.unlink(missing_ok=True)
    with path.open("a+b") as file:
        with contextlib.suppress(MissingPrerequisite):
            _take(file, fcntl.LOCK_EX)
        yield


def has_writer(file: IO[bytes]) -> bool:
    """Return whether somebody writes to an open file at present, by `sole_writer`."""
    with contextlib.suppress(MissingPrerequisite):
        if not _try(file, fcntl.LOCK_SH):
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


@contextlib.contextmanager
def _opened(folder: Path, name: str) -> Iterator[IO[str]]:
    folder.mkdir(parents=True, exist_ok=True)
    # The file has its path as its name, for messages.
    with open(lock_path(folder, name), "r+", opener=_open) as file:
        yield file


def _open(path: str, _: int) -> int:
    return os.open(path, _FLAGS, 0o666)


def lock_path(folder: Path, name: str) -> Path:
    """Return the file of the lock `name` in a folder."""
    return folder / f".{name}.lock"


def this_process() -> str:
    """Return the number of this process, its host and the time, for messages of others."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return f"process {os.getpid()} on {os.uname().nodename} (since {since})"


def _sign(file: IO[str]) -> None:
    """Write into a lock which process has it, for those who wait."""
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), this_process().encode(), 0)


def _take(
    file: IO[str] | IO[bytes],
    how: int,
    waiting: Callable[[str], object] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    start, is_waiting = time.monotonic(), False
    while not _try(file, how):
        if stopped():
            raise Interrupted("interrupted")
        if not is_waiting and time.monotonic() - start > _MOMENT_S:
            holder = os.pread(file.fileno(), _LONGEST, 0).decode(errors="replace")
            waiting(printable(holder) or "another process")
            is_waiting = True
        time.sleep(_POLL_S)


def is_at(handle: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path, not removed or replaced."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except OSError:  # the file was removed, or NFS reports a stale handle
        return False


def _try(file: IO[str] | IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise MissingPrerequisite(f"{file.name}: {NO_LOCKS}", hint=_MOUNT) from error
        error.filename = file.name
        raise
    return True
