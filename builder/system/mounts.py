"""What is mounted below a folder, as Linux tells it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from builder.model.errors import BuildImagesError
from builder.system.process import Processes

_ESCAPE = re.compile(rb"\\([0-7]{3})")  # space, tab, newline and backslash, proc_pid_mountinfo(5)
_TARGET = 4


def mounted_below(folder: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> list[Path]:
    """Return where something is mounted at `folder` or below it, the last one mounted first.

    `folder` is a real path, without links; `mounts` is in the format of `/proc/PID/mountinfo`.
    """
    lines = mounts.read_bytes().splitlines()
    targets = [Path(_unescaped(line.split(b" ")[_TARGET])) for line in lines]
    return [one for one in reversed(targets) if one == folder or folder in one.parents]


def _unescaped(field: bytes) -> str:
    found = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field)
    return found.decode(errors="surrogateescape")


def type_of(folder: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that a folder is on, as `tmpfs`; empty if nothing says it."""
    found, longest = "", -1
    real = folder.resolve()
    for line in mounts.read_bytes().splitlines():
        fields, _, rest = line.partition(b" - ")
        target = Path(_unescaped(fields.split(b" ")[_TARGET]))
        if (target == real or target in real.parents) and len(target.parts) >= longest:
            found, longest = rest.split(b" ")[0].decode(), len(target.parts)
    return found


def as_root_of_own() -> tuple[str, ...]:
    """The words before a command that is to be root and to mount, where nobody else sees it.

    `buildah unshare` reads sub-ids as newuidmap does, and is there wherever images are built.
    """
    return ("unshare", "--mount") if os.geteuid() == 0 else ("buildah", "unshare")


def remove_tree(folder: Path) -> None:
    """Remove a folder if it is there, also with what sub-ids own in it.

    Processes of a run that was interrupted start nothing more, so these are others.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if os.geteuid() != 0 and os.path.lexists(folder):
        with contextlib.suppress(BuildImagesError):
            Processes().capture([*as_root_of_own(), "rm", "-rf", "--", folder], check=False)
