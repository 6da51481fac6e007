"""The tree of a folder on disk, read back: whether it still is what was pulled."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from builder.artifacts.tree import Entry, comparable, is_allowed, tree_digest
from builder.model.digests import sha256_of_file


def tree_on_disk(folder: Path) -> str:
    """The tree digest of a folder; raises `OSError` where something cannot be read."""
    return tree_digest(comparable(_entries(folder)))


def _entries(folder: Path) -> Iterator[Entry]:
    known: dict[tuple[int, int], str] = {}
    todo = [""]
    while todo:
        above = todo.pop()
        with os.scandir(folder / above) as entries:
            for entry in entries:
                path = f"{above}/{entry.name}" if above else entry.name
                if is_allowed(path):
                    continue
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    todo.append(path)
                yield _entry(folder / path, path, status, known)


def _entry(
    file: Path, path: str, status: os.stat_result, known: dict[tuple[int, int], str]
) -> Entry:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return Entry(path=path, kind="link", mode=0o777, target=os.readlink(file))  # noqa: PTH115 - as it is
    if not stat.S_ISREG(status.st_mode):
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "pipe"
        return Entry(path=path, kind=kind, mode=mode)
    inode = status.st_dev, status.st_ino
    if inode not in known:
        known[inode] = sha256_of_file(file)
    return Entry(path=path, kind="file", mode=mode, size=status.st_size, content=known[inode])
