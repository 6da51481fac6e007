"""A folder that is there whole or not at all, whoever else makes the same one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from builder.errors import BadInput

_POLL_S = 0.2


@contextlib.contextmanager
def made_whole(target: Path) -> Iterator[Path | None]:
    """An empty folder beside `target`, which becomes it at the end; None if it is there by then.

    The folder's own lock is held meanwhile: another who makes the same waits for it. What one that
    was killed has left is emptied. If anything is raised, all of it is removed.
    """
    partial = target.with_name(f".{target.name}.partial")
    handle = _locked(partial, target)
    if handle is None:
        yield None
        return
    try:
        yield partial
        partial.chmod(0o755)
        partial.rename(target)
    except BaseException:
        _remove(partial)
        raise
    finally:
        os.close(handle)


def _locked(partial: Path, target: Path) -> int | None:
    """A descriptor that holds the lock of the folder, which is empty; None if `target` is there."""
    while not os.path.lexists(target):
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileExistsError, NotADirectoryError) as error:
            raise BadInput(f"{partial.parent}: no folder can be made there ({error})") from error
        except FileNotFoundError:  # another has just given it its name, or removed it
            continue
        if _taken(handle, partial) and not os.path.lexists(target):
            _empty(partial)
            return handle
        os.close(handle)
    return None


def _taken(handle: int, partial: Path) -> bool:
    """Wait for the lock; whether the folder is still the one at its path."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(_POLL_S)
    try:
        return os.path.samestat(os.fstat(handle), os.stat(partial, follow_symlinks=False))  # noqa: PTH116
    except FileNotFoundError:
        return False


def _empty(folder: Path) -> None:
    for one in folder.iterdir():
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one)
        else:
            one.unlink()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
