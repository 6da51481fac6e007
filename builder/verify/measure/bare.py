"""The reference for measurements: an image's root file system without a container runtime.

The tarball is unpacked, and entered by chroot with only the image's variables.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from builder.model.measurement import BARE
from builder.verify.runners.protocol import (
    DATA_AT,
    HOME_IN_CONTAINER,
    NOBODY,
    Container,
    Kind,
    Prefixed,
    Runner,
)
from builder.verify.runners.sites import unpacked

BARE_FORMAT = "charliecloud"  # the artifact that tar unpacks
_MOUNT_POINTS = ("proc", "sys", "dev", DATA_AT.lstrip("/"))  # an image may lack them

_ENTER = f"""\
root=$1 data=$2
shift 2
for folder in proc sys dev; do mount --rbind "/$folder" "$root/$folder" || exit 125; done
mount --bind "$data" "$root{DATA_AT}" || exit 125
exec setpriv --no-new-privs chroot "$@"
"""
_IN_FOLDER = 'cd "$0" && exec "$@"'


def bare_kind(environment: Mapping[str, str]) -> Kind:
    """Return bare execution as a kind of runner, for an image with these variables."""
    return Kind(
        name=BARE,
        format=BARE_FORMAT,
        program="chroot",
        open=lambda container: _bare_runner(container, environment),
    )


@contextlib.contextmanager
def _bare_runner(container: Container, environment: Mapping[str, str]) -> Iterator[Runner]:
    with unpacked(container, user=None) as root:
        for name in _MOUNT_POINTS:
            (root / name).mkdir(exist_ok=True)
        prefix = chroot_argv(
            str(root),
            str(container.data or ""),
            {**environment, "HOME": HOME_IN_CONTAINER},
            directory=container.directory,
            is_root=os.geteuid() == 0,
        )
        yield Prefixed(prefix=tuple(prefix), tools=container.tools, cwd=root.parent)


def chroot_argv(
    root: str, data: str, environment: Mapping[str, str], *, directory: str, is_root: bool
) -> list[str]:
    """Return the argv before the command. Its mounts end with the process that makes them."""
    namespaces = ["--mount"] if is_root else ["--user", "--map-root-user", "--mount"]
    user = [f"--userspec={NOBODY}", "--groups=65534"] if is_root else []
    variables = [f"{name}={value}" for name, value in environment.items()]
    return [
        *("unshare", *namespaces, "sh", "-c", _ENTER, BARE, root, data, *user, root),
        *("/usr/bin/env", "-i", *variables, "sh", "-c", _IN_FOLDER, directory),
    ]
