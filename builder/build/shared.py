"""The folder that a site's administrator shares with all users, named by `site.yaml`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from builder.system.home import SHARED_VARIABLE, Home

SITE, VARIABLE = "site.yaml", "BUILD_IMAGES_SITE"  # as builder.load.site has them
_LINKED = ("bases", "native", "sources/sha256")  # folders with complete entries that never change


def name_shared(project: Path) -> None:
    """Set the shared folder that a site names, unless the environment names one."""
    is_there = (project / SITE).exists() or VARIABLE in os.environ
    if SHARED_VARIABLE in os.environ or not is_there:
        return
    from builder.load.document import Faults  # noqa: PLC0415 - most projects have no site.yaml
    from builder.load.site import read_site  # noqa: PLC0415

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
