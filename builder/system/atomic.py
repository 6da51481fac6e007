"""Files that leave nothing half-made, whatever ends this process."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Write a file that is there whole, or as it was before; nobody else writes it meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    try:
        with partial.open("w") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        partial.rename(file)
        fsync(file.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(file: Path, text: str, *, errors: str = "strict") -> None:
    """Write a file so that a reader sees all of it or the one before; others may write it, too.

    `errors` says, as `str.encode` takes it, what comes of what is no Unicode. After a power cut the
    file may be as it was before.
    """
    partial = file.with_name(f".{os.urandom(12).hex()}.partial")  # its own name may be a long one
    try:
        partial.write_text(text, encoding="utf-8", errors=errors)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Have a file, or the names in a folder, on disk even if the power fails."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_files(folder: Path) -> None:
    """Have the files right in a folder on disk, and their names: before it gets its own name."""
    for one in folder.iterdir():
        if one.is_file() and not one.is_symlink():
            fsync(one)
    fsync(folder)


@contextlib.contextmanager
def unnamed(folder: Path) -> Iterator[Path]:
    """The path of an empty file that is in no folder, on the file system of one.

    It is gone when it is closed, also if nobody is left to remove it.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        yield Path(f"/proc/self/fd/{file.fileno()}")


def discard(file: Path) -> None:
    """Remove a file, if it is there; an `unnamed` one goes by itself."""
    with contextlib.suppress(PermissionError):
        file.unlink(missing_ok=True)


def note_use(record: Path) -> None:
    """Note that something is of use: `gc` leaves what was so lately.

    What another user shares is that one's to note, and to remove.
    """
    with contextlib.suppress(OSError):  # gone, another's, or on a file system that is read-only
        os.utime(record)


_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def read_regular(path: Path, limit: int | None = None, *, follow: bool = False) -> bytes:
    """Return the bytes of a regular file, of which there are at most `limit`.

    Raises `OSError` for anything else at that path: no pipe is waited for, and no link followed,
    unless asked to `follow`.
    """
    flags = _FLAGS if follow else _FLAGS | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        content = file.read() if limit is None else file.read(limit + 1)
    if limit is not None and len(content) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def irregular(path: Path) -> Iterator[Path]:
    """A path, and those below it, that lead neither to regular files nor to folders."""
    for found in [path, *(path.rglob("*") if path.is_dir() else ())]:
        if not (found.is_file() or found.is_dir()):
            yield found
