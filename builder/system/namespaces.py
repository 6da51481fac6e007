"""Namespaces for commands that have to be root: without being the machine's.

An ordinary user is root of one in which the files of the user's own are root's, and the sub-ids
belong to everybody else. So a home that is closed to others (mode 0700) is open there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from builder.model.errors import BuildImagesError
from builder.system.process import Processes


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
