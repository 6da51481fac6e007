"""Trials of the builder's folders: modes and numbers do not show whether they work.

A file is written and a program started in each folder; a layer is unpacked in the store. For root,
the user who runs images must be able to enter the home. Quotas limit the space, too.
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

from builder.host.doctor.diagnosis import DISK, Item
from builder.model.errors import BuildImagesError, MissingPrerequisite
from builder.system.files import type_of
from builder.system.home import folder_of_user
from builder.system.locks import NO_LOCKS, locked
from builder.system.process import Processes
from builder.system.storage_drivers import VFS, StorageTrial, needed_bytes

HOME, STORE, TEMPORARY, REACH = "home", "store", "temporary", "reach"
FOLDERS = (HOME, STORE, TEMPORARY)
_SAMPLE = bytes(1 << 16)
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})  # a large file there takes memory
_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderTrial:
    """The settings for trials. `other` is the user who runs images, if the caller is root.

    Folders above `top` are not examined; tests use their own `top`.
    """

    processes: Processes
    other: str = ""
    top: Path = Path("/")


def folder_items(home: Path, trial: FolderTrial, storage: StorageTrial) -> list[Item]:
    """Return the items of the home, the store in it, and the folder for temporary files."""
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the system's default
    need = needed_bytes(storage.driver)
    own = folder_of_user()
    is_own = own is not None and home.is_relative_to(own)
    larger = "set BUILD_IMAGES_HOME to a folder " + ("on another disk" if is_own else "of your own")
    problem = folder_problem(temporary, trial) if temporary.is_dir() else "missing"
    return [
        _item(HOME, "the builder's home", home, folder_problem(home, trial, need=need), larger),
        _store_item(home / "storage", storage),
        _item(TEMPORARY, "temporary files", temporary, problem, "set TMPDIR"),
        _reach_item(home, trial),
    ]


def folder_problem(folder: Path, trial: FolderTrial | None = None, *, need: int = 0) -> str:
    """Return why a folder, which need not exist yet, cannot be used; empty if it can.

    Without a trial, no program is started and free space is not checked. A folder that is to hold
    `need` bytes is the builder's home, or like it: it also needs locks.
    """
    existing = standing(folder)
    try:
        with _scratch(existing) as scratch:
            if trial is None:
                return ""
            if need:
                with locked(scratch, "trial"):
                    pass
            return _not_started(scratch, trial) or _no_room(existing, scratch, need)
    except MissingPrerequisite:
        return f"{NO_LOCKS} (Lustre: mount it with flock)"
    except OSError as error:
        return f"cannot be written to: {error.strerror or error}"


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """Create a temporary folder, with a file that is written to disk."""
    with tempfile.TemporaryDirectory(dir=parent, prefix=".trial-") as name:
        scratch = Path(name)
        with (scratch / "file").open("wb") as file:
            file.write(_SAMPLE)
            file.flush()
            os.fsync(file.fileno())
        yield scratch


def _not_started(scratch: Path, trial: FolderTrial) -> str:
    """Return why no program can start there: the file system may be mounted `noexec`."""
    program = scratch / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(stat.S_IRWXU)
    try:
        trial.processes.capture([program], check=False, timeout_s=_TIMEOUT_S)
    except PermissionError:
        return "programs cannot start there: its file system is mounted noexec"
    return ""


def _no_room(folder: Path, scratch: Path, need: int) -> str:
    free = free_bytes(folder)
    if free < need:
        return f"{free / 1e9:.1f} GB free, but {need / 1e9:.1f} GB may be needed"
    if free > 2 * need > 0 and type_of(folder) not in _IN_MEMORY and _exceeds_quota(scratch, need):
        return f"a quota leaves less than {need / 1e9:.1f} GB, which may be needed"
    return ""


def _exceeds_quota(scratch: Path, size: int) -> bool:
    """Return whether a file of this size exceeds a quota; not all file systems tell at once.

    https://man7.org/linux/man-pages/man2/fallocate.2.html
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with (scratch / "large").open("wb") as file:
        failed = libc.fallocate(file.fileno(), 0, ctypes.c_longlong(0), ctypes.c_longlong(size))
        return bool(failed) and ctypes.get_errno() in {errno.EDQUOT, errno.ENOSPC}


def _reach_item(home: Path, trial: FolderTrial) -> Item:
    """Return whether the other user can reach the programs in the home."""
    closed = _closed_to(home, trial) if trial.other else None
    text = f"{closed} is closed to the user {trial.other}" if closed else str(home)
    remedy = f"chmod a+x {closed}, or set BUILD_IMAGES_HOME" if closed else ""
    return Item(REACH, DISK, "access to the home", text, remedy)


def _closed_to(home: Path, trial: FolderTrial) -> Path | None:
    """Return the topmost folder on the path to the home that the other user cannot enter."""
    parents = [folder for folder in (home, *home.parents) if folder.is_relative_to(trial.top)]
    closed = [one for one in parents if one.is_dir() and not one.stat().st_mode & stat.S_IXOTH]
    if closed or trial.top != Path("/"):
        return closed[-1] if closed else None
    # An access list or a file server may refuse a user although the modes allow access.
    folder = standing(home)
    try:
        done = trial.processes.capture(
            ["test", "-x", folder], user=trial.other, check=False, timeout_s=_TIMEOUT_S
        )
    except BuildImagesError:
        return None  # the user does not exist, which another item reports
    return folder if done.returncode else None


def _item(key: str, title: str, folder: Path, problem: str, remedy: str) -> Item:
    free = free_bytes(folder)
    text = f"{folder}: {problem}" if problem else f"{free / 1e9:.1f} GB free at {folder}"
    data = {"free_bytes": free, "folder": str(folder)}
    return Item(key, DISK, title, text, remedy if problem else "", data=data)


def here_item() -> Item:
    """Return the item for the free space in the working directory."""
    return _item("here", "this folder", Path.cwd(), "", "")


def _store_item(folder: Path, storage: StorageTrial) -> Item:
    driver = storage.driver
    text = f"{driver.title}; a layer was unpacked in {storage.seconds:.1f} s"
    if driver.name == VFS:
        text += f". Each layer is a complete copy, because {driver.why}"
    remedy = "see the other lines, or set BUILD_IMAGES_HOME" if storage.problem else ""
    data = {
        "folder": str(folder),
        "driver": driver.name,
        "program": driver.program,
        "needed_bytes": needed_bytes(driver),
    }
    return Item(STORE, DISK, "the store", storage.problem or text, remedy, data=data)


def standing(folder: Path) -> Path:
    """Return the folder itself, or the nearest existing folder above it."""
    candidates = (folder.absolute(), *folder.absolute().parents)
    return next(one for one in candidates if os.path.isdir(one))  # noqa: PTH112 - Path's may raise


def free_bytes(folder: Path) -> int:
    """Return how many bytes an ordinary user may write to the folder's file system."""
    return shutil.disk_usage(standing(folder)).free
