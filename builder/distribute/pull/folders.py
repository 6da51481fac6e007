"""A folder that is there whole or not at all, whoever else makes the same one."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from builder.distribute.pull.members import shown
from builder.model.errors import BadInput, Refused
from builder.system.files import fsync, fsync_files
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


_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def is_own(status: os.stat_result) -> bool:
    """True if a file belongs to this user, and nobody else may write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS


def is_own_file(path: Path) -> bool:
    """True if there is a file, no link, of this user's own."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and is_own(status)


def make_own(folder: Path) -> None:
    """Have a folder, and the one that it is in, to which this user alone gets (0700).

    Raises `Refused` for one that was there and that others could change: what is in it may be
    theirs.
    """
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
        check_own(path)
        path.chmod(0o700)


def check_own(folder: Path) -> None:
    """Raise `Refused` if a folder is there that others could change, and it or its files theirs."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise Refused(f"{folder} is no folder", hint="remove it, and pull again")
    if status.st_uid != os.geteuid():
        raise Refused(
            f"{folder} belongs to somebody else, who could change what is pulled",
            hint="name a home of your own with BUILD_IMAGES_HOME",
        )
    if not is_own(status):
        raise Refused(
            f"{folder} can be written to by others, who could change what is pulled",
            hint=f"remove it; or, if nobody else did write there: chmod 700 {folder}",
        )


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_LATEST = (1 << 31) - 1  # seconds; what every file system can hold


class Root:
    """The root of an image on disk. Folders are open to their owner until `settle`.

    The descriptors of the folder that was used last, and of those above it, are kept.
    """

    def __init__(self, path: Path) -> None:
        self._open: list[tuple[str, int]] = [("", os.open(path, _FOLDER))]

    def close(self) -> None:
        """Close all descriptors."""
        while self._open:
            os.close(self._open.pop()[1])

    def folder(self, path: str) -> None:
        """Make a folder, unless it is there."""
        with self._parent(path) as (parent, name), contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)

    def file(self, path: str, content: IO[bytes], size: int, mode: int, mtime: float) -> str:
        """Write a file of `size` bytes; the SHA-256 of what was written, in hexadecimal."""
        digest, remaining = hashlib.sha256(), size
        with self._parent(path) as (parent, name):
            file = os.open(name, _FILE, 0o600, dir_fd=parent)
            try:
                while remaining:
                    data = content.read(min(remaining, _CHUNK))
                    if not data:
                        raise Refused(f"/{shown(path)}: {remaining} bytes of it are missing")
                    digest.update(data)
                    remaining -= len(data)
                    _write(file, data)
                os.fchmod(file, mode)
                os.utime(file, (_time(mtime), _time(mtime)))
            finally:
                os.close(file)
        return digest.hexdigest()

    def link(self, path: str, target: str, mtime: float) -> None:
        """Make a symbolic link, which is not followed, whatever it says."""
        with self._parent(path) as (parent, name):
            os.symlink(target, name, dir_fd=parent)
            times = (_time(mtime), _time(mtime))
            os.utime(name, times, dir_fd=parent, follow_symlinks=False)

    def pipe(self, path: str, mode: int) -> None:
        """Make a named pipe."""
        with self._parent(path) as (parent, name):
            os.mkfifo(name, 0o600, dir_fd=parent)
            os.chmod(name, mode, dir_fd=parent)

    def same(self, path: str, target: str) -> None:
        """Make a path another name of what is at `target`: a hard link."""
        with self._parent(target) as (parent, name):
            folder = os.dup(parent)
        try:
            with self._parent(path) as (parent, other):
                os.link(name, other, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(folder)

    def remove(self, path: str, *, folder: bool) -> None:
        """Remove a file, or an empty folder."""
        with self._parent(path) as (parent, name):
            if folder:
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)

    def settle(self, path: str, mode: int, mtime: float) -> None:
        """Give a folder its mode and its time, once everything in it is there."""
        file = self._at(path.split("/") if path else [], path)
        os.fchmod(file, mode)
        os.utime(file, (_time(mtime), _time(mtime)))

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder that a path is in, and the path's last component."""
        *parents, name = path.split("/")
        yield self._at(parents, path), name

    def _at(self, parts: list[str], path: str) -> int:
        known = 1
        while known < len(self._open) and self._open[known][0] == "/".join(parts[:known]):
            known += 1
        while len(self._open) > known:
            os.close(self._open.pop()[1])
        for end in range(known, len(parts) + 1):
            parent = self._open[-1][1]
            try:
                opened = os.open(parts[end - 1], _FOLDER, dir_fd=parent)
            except OSError as error:
                above = "/".join(parts[:end])
                reason = f"/{shown(path)}: /{shown(above)} above it is no folder"
                raise Refused(f"{reason} ({error.strerror})") from error
            self._open.append(("/".join(parts[:end]), opened))
        return self._open[-1][1]


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _time(mtime: float) -> int:
    return int(min(max(mtime, 0), _LATEST))


def kept_mode(mode: int, *, folder: bool) -> int:
    """The mode on disk: neither setuid nor setgid, and what the owner needs to read it."""
    safe = mode & ~(stat.S_ISUID | stat.S_ISGID)
    return safe | (stat.S_IRWXU if folder else stat.S_IRUSR)
