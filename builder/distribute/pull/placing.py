"""A folder that is there whole or not at all, whoever else makes the same one."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from builder.model.errors import BadInput
from builder.system.atomic import fsync, fsync_files
from builder.system.locks import is_at

_POLL_S, _MOMENT = 0.2, 5
_REMOVED = 10  # times in a row that a folder is made and gone
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def atomic_folder(
    target: Path, waiting: Callable[[str], object] = lambda _: None
) -> Iterator[Path | None]:
    """An empty folder beside `target`, which becomes it at the end; None if it is there by then.

    The lock of a file beside it is held meanwhile: another who makes the same waits for it, also on
    another node: NFS hands locks of files that are open for writing to its server, and keeps those
    of folders to the node (flock(2)). `waiting` is told if that takes more than a moment. What one
    that was killed has left is emptied. If anything is raised, all of it is removed. Files right in
    the folder are on disk before it has its name.
    """
    if target.name in {"", ".."}:
        raise BadInput(f"{target}: a folder is there", hint="name one that is to be made")
    partial = target.with_name(f".{target.name}.partial")
    lock = target.with_name(f".{target.name}.lock")
    handle = _locked(lock, target, waiting)
    if handle is None:
        _sweep(lock)
        yield None
        return
    try:
        try:
            _fresh(partial)
            yield partial
            partial.chmod(0o755)
            fsync_files(partial)
            partial.rename(target)
        except BaseException:
            if _is_own(partial):
                shutil.rmtree(partial, ignore_errors=True)
            raise
        fsync(target.parent)
    finally:
        lock.unlink(missing_ok=True)  # who waits for it sees that it is gone
        os.close(handle)


def _sweep(lock: Path) -> None:
    """Remove the lock of who was killed after the folder had its name, unless it is held."""
    with contextlib.suppress(OSError):
        handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(handle, lock):
                lock.unlink()
        finally:
            os.close(handle)


def _locked(lock: Path, target: Path, waiting: Callable[[str], object]) -> int | None:
    """A descriptor that holds a lock; None if `target` is there."""
    removed = 0
    while not os.path.lexists(target):
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(lock, _LOCK, 0o600)
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise _not_there(lock, error) from error
        except (
            FileNotFoundError
        ) as error:  # the folder was removed meanwhile; in /proc no file is made
            removed += 1
            if removed > _REMOVED:
                raise _not_there(lock, error) from error
            continue
        if _taken(handle, lock, lambda: waiting(f"waiting for another that makes {target}")):
            if not os.path.lexists(target):
                return handle
            lock.unlink(missing_ok=True)
        os.close(handle)
    return None


def _taken(handle: int, lock: Path, waiting: Callable[[], object]) -> bool:
    """Wait for the lock; whether its file is still the one at its path."""
    for number in itertools.count():
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if number == _MOMENT:
                waiting()
            time.sleep(_POLL_S)
    return is_at(handle, lock)


def _fresh(folder: Path) -> None:
    """Make a folder, or empty this user's own: what somebody else prepared is not gone through."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_own(folder):
            raise BadInput(f"{folder}: this is no folder of this user", hint="remove it")
        folder.chmod(0o700)
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except (FileExistsError, NotADirectoryError) as error:
        raise _not_there(folder, error) from error


def _is_own(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _not_there(path: Path, error: OSError) -> BadInput:
    return BadInput(f"{path.parent}: no folder can be made there ({error})")
