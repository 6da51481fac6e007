"""Folders and files of this user that nobody else can have changed.

What lies below such a folder is what this user's programs put there, so what was checked there is
the same when it is used.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from builder.model.errors import Refused

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
