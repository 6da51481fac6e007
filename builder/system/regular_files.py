"""Reading files that may have been replaced: by a link, a pipe, a device without an end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

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
