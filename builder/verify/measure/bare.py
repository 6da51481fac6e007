"""Bare: the image's root file system by chroot(2), with this machine's own /proc, /sys and /dev.

The programs are the image's, to the byte, so that what differs is the container runtime alone. For
root there is no namespace but one of mounts, which costs nothing once programs run; an ordinary
user may not chroot without one of users, which is then part of what he compares with. No program
gains privileges: neither those that are set-user-ID nor those with file capabilities.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from builder.verify.measure.values import BARE
from builder.verify.runners import DATA_AT, Container, Kind, Runner
from builder.verify.runners.protocol import HOME_IN_CONTAINER, NOBODY, Prefixed
from builder.verify.runners.sites import unpacked

FORMAT = "charliecloud"  # the artifact that tar unpacks
_MOUNT_POINTS = ("proc", "sys", "dev", DATA_AT.lstrip("/"))  # an image may lack them

_ENTER = f"""\
root=$1 data=$2
shift 2
for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder" || exit 125; done
mount --bind "$data" "$root{DATA_AT}" || exit 125
exec setpriv --no-new-privs chroot "$@"
"""
_IN_FOLDER = 'cd "$0" && exec "$@"'


def how(*, is_root: bool) -> str:
    """Return how the root file system is entered, in words."""
    entered = "the image's root file system, unpacked and entered by chroot"
    return entered if is_root else f"{entered} in a user namespace"


@contextlib.contextmanager
def bare_runner(container: Container, environment: Mapping[str, str]) -> Iterator[Runner]:
    """The tarball unpacked, and entered with the image's variables and none of the caller's."""
    tools, is_root = container.tools, os.geteuid() == 0
    with unpacked(container, user=None) as root:
        for name in _MOUNT_POINTS:
            (root / name).mkdir(exist_ok=True)
        yield Prefixed(
            prefix=tuple(
                words(
                    str(root),
                    container.shown,
                    {**environment, "HOME": HOME_IN_CONTAINER},
                    directory=container.directory,
                    is_root=is_root,
                )
            ),
            tools=tools,
            cwd=root.parent,
        )


def words(
    root: str, data: str, environment: Mapping[str, str], *, directory: str, is_root: bool
) -> list[str]:
    """The command line before the command. Mounts are gone with the process that made them."""
    namespaces = ["--mount"] if is_root else ["--user", "--map-root-user", "--mount"]
    user = [f"--userspec={NOBODY}", "--groups=65534"] if is_root else []
    variables = [f"{name}={value}" for name, value in environment.items()]
    return [
        "unshare",
        *namespaces,
        *["sh", "-c", _ENTER, BARE, root, data, *user, root],
        *["/usr/bin/env", "-i", *variables, "sh", "-c", _IN_FOLDER, directory],
    ]


def bare_kind(environment: Mapping[str, str]) -> Kind:
    """Bare as a runner of an image with these variables."""
    return Kind(
        name=BARE,
        format=FORMAT,
        program="chroot",
        open=lambda container: bare_runner(container, environment),
    )
