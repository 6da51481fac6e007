"""Use of the store beside other builders, and removal of what killed builders left in it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from builder.build.engines import Buildah, Tools
from builder.load.document import Faults
from builder.load.site import read_site
from builder.system.files import mounted_below, remove_tree, unmount_below, write_atomically
from builder.system.home import SHARED_VARIABLE, Home
from builder.system.locks import locked, shared_lock, try_exclusive
from builder.system.orphans import MARK, end_orphans, living
from builder.system.process import Processes
from builder.system.terminal import interruptions

LOCK = "builder"
OWN_STORAGE = "storage-"  # begins the name of a storage, in the folder of temporary files
_PROJECTS = "projects.json"


@contextlib.contextmanager
def store_in_use(
    home: Home,
    project: Path,
    say: Callable[[str], object],
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[IO[str]]:
    """Keep others from removing anything from the store meanwhile; record the project."""
    with (
        _usual_modes(),
        shared_lock(
            home.path,
            LOCK,
            waiting=lambda holder: say(f"waiting for {holder}, which cleans the store"),
            stopped=stopped,
        ) as turn,
    ):
        _remember(home, project)
        link_shared(home)
        yield turn


@contextlib.contextmanager
def _usual_modes() -> Iterator[None]:
    """Create files with the same modes for every user, since images have copies of them.

    Build steps inherit the umask, and so do programs whose files other user ids must reach.
    """
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def at_work(
    tools: Tools, project: Path, say: Callable[[str], object], *, is_clean: bool = False
) -> Iterator[None]:
    """Work on the store beside other builders.

    Unless the store `is_clean`, first end processes that killed builders left running. If no other
    builder is at work, also remove containers and mounts that they left: at the start and, after
    an interruption, at the end.
    """
    home = tools.home
    with (
        store_in_use(home, project, say, stopped=lambda: tools.processes.stopping) as turn,
        living(home.builders) as mark,
    ):
        tools.processes.mark[MARK] = mark
        if not is_clean:
            with try_exclusive(turn) as alone:
                end_orphans(home.builders, home=home.path if alone else None)
                if alone:
                    clean(tools)
        finished = False
        try:
            yield
            finished = not tools.processes.stopping
        finally:
            if not finished:
                with interruptions(lambda: None):  # the program is already ending
                    tools.processes.stop()
                    with try_exclusive(turn) as alone:
                        if alone:
                            clean(tools)


def projects(home: Home) -> list[str]:
    """Return the folders of the projects that use a store."""
    try:
        folders = json.loads((home.path / _PROJECTS).read_text())
    except (OSError, ValueError):
        return []
    return [str(folder) for folder in folders] if isinstance(folders, list) else []


def _remember(home: Home, project: Path) -> None:
    if str(project) not in projects(home):
        with locked(home.path, "projects"):
            known = json.dumps(sorted({*projects(home), str(project)}), indent=1)
            write_atomically(home.path / _PROJECTS, known + "\n", durable=True)


def clean(tools: Tools) -> None:
    """Remove containers and mounts. Call it only when no other builder is at work."""
    Buildah(tools).clean()
    temporary = tools.home.temporary.resolve()
    for storage in (tools.home.storage.resolve(), *temporary.glob(f"{OWN_STORAGE}*")):
        unmount_below(storage, Processes())
    if not mounted_below(temporary):  # files below a mount are not its own
        remove_tree(tools.home.temporary)


# ---- The folder that a site's administrator shares with all users, named by `site.yaml` ----

_LINKED = ("bases", "native", "sources/sha256")  # folders with complete entries that never change


def name_shared(project: Path) -> None:
    """Set the shared folder that a site names, unless the environment names one."""
    if SHARED_VARIABLE in os.environ:
        return
    faults = Faults()
    shared = read_site(project, faults).shared
    if shared and not faults.found:  # its faults are reported where the site itself is read
        os.environ[SHARED_VARIABLE] = shared


def link_shared(home: Home) -> None:
    """Link shared entries into a home; the home's own entries stay."""
    if home.shared is None:
        return
    for name in _LINKED:
        theirs, own = home.shared / name, home.path / name
        if not theirs.is_dir():
            continue
        own.mkdir(parents=True, exist_ok=True)
        for link in [one for one in own.iterdir() if one.is_symlink() and not one.exists()]:
            link.unlink(missing_ok=True)  # it is no longer shared
        for path in theirs.iterdir():
            if not path.name.startswith(".") and not os.path.lexists(own / path.name):
                with contextlib.suppress(FileExistsError):  # another builder was faster
                    (own / path.name).symlink_to(path)
