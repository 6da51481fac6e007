"""The folders that a builder works in, tried: modes and numbers do not tell what works.

A file is written there and a program is started; in the store a layer is unpacked; the user whom
root runs images as enters the home. Space is what is free, and what a quota leaves of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.build.engines.storage import VFS, StorageTrial, needed_bytes
from builder.host.doctor.diagnosis import DISK, Item
from builder.model.errors import BuildImagesError
from builder.system.files import type_of
from builder.system.home import folder_of_user
from builder.system.process import Processes

HOME, STORE, TEMPORARY, REACH = "home", "store", "temporary", "reach"
FOLDERS = (HOME, STORE, TEMPORARY)
_PIECE = 1 << 16  # bytes that are written
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})  # where a file that is made large takes memory
_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What trying a folder takes. `other` is the user whom root runs images as, if root asks.

    `top` is where folders begin; tests give one of their own.
    """

    processes: Processes
    other: str = ""
    top: Path = Path("/")


def folder_items(home: Path, trial: Trial, storage: StorageTrial) -> list[Item]:
    """The home, the store in it, and the folder for temporary files."""
    need = needed_bytes(storage.driver)
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the system's own
    return [
        _item(HOME, "the builder's home", home, _elsewhere(home), problem(home, trial, need=need)),
        _store_item(home / "storage", storage),
        _item(TEMPORARY, "temporary files", temporary, "set TMPDIR", _temporary(temporary, trial)),
        _reach_item(home, trial),
    ]


def problem(folder: Path, trial: Trial, *, need: int = 0) -> str:
    """Why a folder cannot be used, which need not be there yet; empty if it can."""
    place = standing(folder)
    try:
        with _scratch(place) as scratch:
            return _not_started(scratch, trial) or _no_room(place, scratch, need)
    except OSError as error:
        return f"cannot be written to: {error.strerror or error}"


def not_written(folder: Path) -> str:
    """Why nothing can be written to a folder, which need not be there yet; empty if it can."""
    try:
        with _scratch(standing(folder)):
            return ""
    except OSError as error:
        return f"cannot be written to: {error.strerror or error}"


@contextlib.contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """A folder with a file in it that was written to disk."""
    with tempfile.TemporaryDirectory(dir=place, prefix=".trial-") as name:
        scratch = Path(name)
        scratch.chmod(0o755)
        with (scratch / "file").open("wb") as file:
            file.write(bytes(_PIECE))
            file.flush()
            os.fsync(file.fileno())
        yield scratch


def _not_started(scratch: Path, trial: Trial) -> str:
    """Return whether programs that lie there are started: a file system may be mounted `noexec`."""
    program = scratch / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    try:
        trial.processes.capture([program], check=False, timeout_s=_TIMEOUT_S)
    except PermissionError:
        return "no program is started from there: its file system is mounted noexec"
    return ""


def _no_room(place: Path, scratch: Path, need: int) -> str:
    free = free_bytes(place)
    if free < need:
        return f"{free / 1e9:.1f} GB free, and {need / 1e9:.1f} GB may be needed"
    if free > 2 * need > 0 and type_of(place) not in _IN_MEMORY and _is_beyond_quota(scratch, need):
        return f"a quota leaves no {need / 1e9:.1f} GB, which may be needed"
    return ""


def _is_beyond_quota(scratch: Path, size: int) -> bool:
    """Whether a file of a size is refused; where a file system does not say so at once, it is not.

    https://man7.org/linux/man-pages/man2/fallocate.2.html
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with (scratch / "large").open("wb") as file:
        failed = libc.fallocate(file.fileno(), 0, ctypes.c_longlong(0), ctypes.c_longlong(size))
        return bool(failed) and ctypes.get_errno() in {errno.EDQUOT, errno.ENOSPC}


def _temporary(folder: Path, trial: Trial) -> str:
    return problem(folder, trial) if folder.is_dir() else "not there"


def _reach_item(home: Path, trial: Trial) -> Item:
    """What root runs as another user lies below the home: that one has to come through."""
    closed = _closed_to(home, trial) if trial.other else None
    text = f"{closed} is closed to the user {trial.other}" if closed else str(home)
    remedy = f"chmod a+x {closed}, or set BUILD_IMAGES_HOME" if closed else ""
    title = "the way to it"
    return Item(key=REACH, group=DISK, title=title, ok=not closed, text=text, remedy=remedy)


def _closed_to(home: Path, trial: Trial) -> Path | None:
    """The first folder on the way to a home that shuts the other user out."""
    way = [one for one in (home, *home.parents) if one.is_relative_to(trial.top) and one.is_dir()]
    closed = [one for one in way if not one.stat().st_mode & stat.S_IXOTH]
    if closed or trial.top != Path("/"):
        return closed[-1] if closed else None
    return _not_entered(standing(home), trial)


def _not_entered(place: Path, trial: Trial) -> Path | None:
    """A folder that a user cannot enter although its mode allows it: by a list, or a server."""
    try:
        done = trial.processes.capture(
            ["test", "-x", place], user=trial.other, check=False, timeout_s=_TIMEOUT_S
        )
    except BuildImagesError:
        return None  # there is no such user, which is told elsewhere
    return place if done.returncode else None


def _elsewhere(home: Path) -> str:
    """Return how to have another home; the one at hand may be that of the environment."""
    own = folder_of_user()
    is_own = own is not None and home.is_relative_to(own)
    return "set BUILD_IMAGES_HOME to a folder " + ("on a larger disk" if is_own else "of your own")


def _item(key: str, title: str, folder: Path, way: str, wrong: str) -> Item:
    free = free_bytes(folder)
    text = f"{folder}: {wrong}" if wrong else f"{free / 1e9:.1f} GB free at {folder}"
    data = {"free_bytes": free, "folder": str(folder)}
    remedy = way if wrong else ""
    return Item(key=key, group=DISK, title=title, ok=not wrong, text=text, remedy=remedy, data=data)


def _store_item(folder: Path, storage: StorageTrial) -> Item:
    driver = storage.driver
    text = f"{driver.title}; a layer was unpacked in {storage.seconds:.1f} s"
    if driver.name == VFS:
        text += f". Each layer is copied whole, since {driver.why}"
    return Item(
        key=STORE,
        group=DISK,
        title="the store",
        ok=not storage.problem,
        text=storage.problem or text,
        remedy="see the other lines; or another folder: BUILD_IMAGES_HOME"
        if storage.problem
        else "",
        data={
            "folder": str(folder),
            "driver": driver.name,
            "program": driver.program,
            "needed_bytes": needed_bytes(driver),
        },
    )


def standing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    candidates = (folder.absolute(), *folder.absolute().parents)
    return next(one for one in candidates if os.path.isdir(one))  # noqa: PTH112 - Path's may raise


def free_bytes(folder: Path) -> int:
    """What an ordinary user may still write where the folder is, or will be."""
    return shutil.disk_usage(standing(folder)).free
