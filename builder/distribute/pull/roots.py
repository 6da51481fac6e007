"""A folder that is filled from layers, and out of which nothing can lead.

Every path is walked from the root's own descriptor, one component at a time, and no link is
followed on the way: whatever a layer holds, nothing outside of the folder is opened or changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from builder.distribute.pull.members import shown
from builder.model.errors import Refused

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
