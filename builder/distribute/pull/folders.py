"""Folders that a pull writes: complete or absent, private to this user, and safe against links."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import operator
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from pathlib import Path

from builder.distribute.pull.members import shown
from builder.model.errors import BadInput, Interrupted, MissingPrerequisite, Refused
from builder.system.files import fsync, fsync_files
from builder.system.locks import lock_path, locked

_NO_FOLDER = (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError)


@contextlib.contextmanager
def atomic_folder(
    target: Path, waiting: Callable[[str], object] = lambda _: None
) -> Iterator[Path | None]:
    """Yield an empty folder beside `target`, and rename it at the end; None if `target` exists.

    A lock file beside it is held in the meantime: processes that make the same folder wait for it,
    also on other nodes; `waiting` gets a line if that takes more than a moment. The remains of a
    killed process are removed first. After an error, the folder is removed. Files directly in the
    folder are synced to disk before it is renamed.
    """
    if target.name in {"", ".."}:
        raise BadInput(f"{target}: not a new folder", hint="name a folder to create")
    partial = target.with_name(f".{target.name}.partial")
    with contextlib.ExitStack() as held:
        try:  # also if `target` exists: a killed process may have left the lock file
            held.enter_context(
                locked(
                    target.parent,
                    target.name,
                    waiting=lambda holder: waiting(f"waiting for {holder}, which makes {target}"),
                    stopped=lambda: os.path.lexists(target),
                )
            )
        except (OSError, Interrupted, MissingPrerequisite) as error:
            if not os.path.lexists(target):
                if isinstance(error, _NO_FOLDER):
                    raise _not_made(target, error) from error
                raise
        if os.path.lexists(target):
            yield None
            return
        try:
            _fresh(partial)
            yield partial
            partial.chmod(0o755)
            fsync_files(partial)
            partial.rename(target)
        except BaseException:
            with contextlib.suppress(OSError):
                if _is_own_folder(partial):
                    shutil.rmtree(partial)
            raise
        fsync(target.parent)


def _fresh(folder: Path) -> None:
    """Make a folder, or empty an existing one of this user; refuse that of another user."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_own_folder(folder):
            raise BadInput(f"{folder}: not a folder of this user", hint="remove it")
        folder.chmod(0o700)
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except (FileExistsError, NotADirectoryError) as error:
        raise _not_made(folder, error) from error


def _is_own_folder(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _not_made(path: Path, error: OSError) -> BadInput:
    lock = lock_path(path.parent, path.name)
    with contextlib.suppress(OSError):
        if (owner := lock.lstat().st_uid) != os.geteuid():
            return BadInput(
                f"{lock} belongs to user {owner}, who makes {path.name} or was interrupted",
                hint="name another folder; or, if no pull of that user runs, have that user remove "
                f"it and .{path.name}.partial",
            )
    return BadInput(f"{path.parent}: cannot create a folder there ({error})")


def fault_of_owner(status: os.stat_result) -> str:
    """Return the reason why other users could change a file or a folder; empty if they cannot."""
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if status.st_uid != os.geteuid():
        return "is owned by another user, who can change it at any time"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "is writable by other users, who can change it at any time"
    return ""


def is_own_file(path: Path) -> bool:
    """Return whether a path is a regular file, not a link, that only this user can change."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and not fault_of_owner(status)


def make_own(folder: Path) -> None:
    """Make a folder and its parent, accessible only to this user (0700).

    Raises `Refused` for an existing folder that others could change: its files may be theirs.
    """
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
        check_own(path)
        path.chmod(0o700)


def check_own(folder: Path) -> None:
    """Raise `Refused` for a folder that others could change; a missing folder is fine."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return
    fault = fault_of_owner(status) if stat.S_ISDIR(status.st_mode) else "is not a folder"
    if fault:
        raise Refused(
            f"{folder} {fault}",
            hint="set BUILD_IMAGES_HOME to a folder of your own; or remove this folder; or, if no "
            f"other user wrote to it, run chown {os.getuid()} {folder} and chmod 700 {folder}",
        )


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LATEST = (1 << 31) - 1  # seconds since 1970; every file system can store it


class Root:
    """The root of an image on disk. Folders have the mode 0700 until `settle`.

    Every path is resolved from the root's descriptor, one component at a time, without following
    links: whatever a layer contains, nothing outside of the folder is opened or changed. The
    descriptors of the last folder and of its parents stay open.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._names = path, list[str]()
        self._open = [os.open(path, _FOLDER)]

    def close(self) -> None:
        """Close all descriptors."""
        while self._open:
            os.close(self._open.pop())

    def folder(self, path: str) -> None:
        """Make a folder unless it exists."""
        parent, name = self._parent(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)

    def file(
        self, path: str, content: Iterable[bytes | memoryview], mode: int, mtime: float
    ) -> str:
        """Write a file; return the SHA-256 of its content, in hexadecimal."""
        digest = hashlib.sha256()
        parent, name = self._parent(path)
        try:
            with os.fdopen(os.open(name, _FILE, 0o600, dir_fd=parent), "wb") as file:
                for piece in content:
                    digest.update(piece)
                    file.write(piece)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.utime(file.fileno(), _times(mtime))
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:  # it names no file
                error.filename = str(self._path / path)
            raise
        return digest.hexdigest()

    def link(self, path: str, target: str, mtime: float) -> None:
        """Make a symbolic link; it is never followed."""
        parent, name = self._parent(path)
        os.symlink(target, name, dir_fd=parent)
        os.utime(name, _times(mtime), dir_fd=parent, follow_symlinks=False)

    def pipe(self, path: str, mode: int) -> None:
        """Make a named pipe."""
        parent, name = self._parent(path)
        os.mkfifo(name, dir_fd=parent)
        os.chmod(name, mode, dir_fd=parent)

    def same(self, path: str, target: str) -> None:
        """Make a path a hard link to `target`."""
        parent, name = self._parent(target)
        folder = os.dup(parent)  # the next call of `_parent` may close it
        try:
            parent, other = self._parent(path)
            os.link(name, other, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(folder)

    def remove(self, path: str, *, folder: bool) -> None:
        """Remove a file, or an empty folder."""
        parent, name = self._parent(path)
        if folder:
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)

    def settle(self, path: str, mode: int, mtime: float) -> None:
        """Set a folder's mode and time, after everything in it was written."""
        folder = self._at(path.split("/"), path)
        os.fchmod(folder, mode)
        os.utime(folder, _times(mtime))

    def _parent(self, path: str) -> tuple[int, str]:
        """Return the descriptor of a path's parent folder, and the path's last component."""
        *parents, name = path.split("/")
        return self._at(parents, path), name

    def _at(self, parts: list[str], path: str) -> int:
        del self._names[sum(takewhile(bool, map(operator.eq, self._names, parts))) :]
        while len(self._open) > len(self._names) + 1:
            os.close(self._open.pop())
        for part in parts[len(self._names) :]:
            try:
                self._open.append(os.open(part, _FOLDER, dir_fd=self._open[-1]))
            except OSError as error:
                above = "/".join([*self._names, part])
                reason = f"/{shown(path)}: its parent /{shown(above)} is not a folder"
                raise Refused(f"{reason} ({error.strerror})") from error
            self._names.append(part)
        return self._open[-1]


def _times(mtime: float) -> tuple[int, int]:
    seconds = int(min(max(mtime, 0), _LATEST))
    return seconds, seconds


def kept_mode(mode: int, *, folder: bool) -> int:
    """Return the mode on disk: without setuid and setgid, and readable for the owner."""
    safe = mode & ~(stat.S_ISUID | stat.S_ISGID)
    return safe | (stat.S_IRWXU if folder else stat.S_IRUSR)
