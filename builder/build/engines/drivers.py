"""Buildah's storage drivers: overlay where it works, and else vfs, which copies every layer whole.

Left to itself, Buildah takes vfs for an ordinary user whom no configuration names another one. What
works is found out by trying it in the storage's file system: kernels before 5.11 mount no overlay
for ordinary users, and file systems such as NFS cannot hold one's upper layer.
https://docs.kernel.org/filesystems/overlayfs.html
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.model.errors import BuildImagesError
from builder.system.mounts import as_root_of_own, remove_tree
from builder.system.process import Processes

OVERLAY, VFS = "overlay", "vfs"
VARIABLE = "STORAGE_DRIVER"  # that of containers-storage, which Buildah follows, too
_FUSE = "fuse-overlayfs"
_LAYERS = "lowerdir=lower,upperdir=upper,workdir=work"
# A file of a lower layer is removed, which takes more than mounting does.
_TRY = (
    'cd "$0" && mkdir lower upper work merged && : >lower/file && "$@" merged && '
    "rm merged/file && mkdir merged/folder && umount merged"
)
_TIMEOUT_S = 20.0
# What one image takes at most, while it is built and packed: `hpc-base` takes 1.3 GB of a storage
# with overlay, and 8.3 GB with vfs.
_NEEDED_BYTES = 3 << 30
_NEEDED_BY_VFS = 12 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """A storage driver. `program` mounts where the kernel does not.

    `why` says why it is not overlay. `options` are Buildah's and Podman's.
    """

    name: str
    program: str = ""
    why: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        mounting = (
            (f"--storage-opt={OVERLAY}.mount_program={self.program}",) if self.program else ()
        )
        return (f"--storage-driver={self.name}", *mounting)

    @property
    def title(self) -> str:
        """`overlay`, `overlay by fuse-overlayfs`, `vfs`."""
        return f"{self.name} by {Path(self.program).name}" if self.program else self.name


def needed_bytes(driver: Driver) -> int:
    """The bytes that one image takes at most, while it is built and packed."""
    return _NEEDED_BY_VFS if driver.name == VFS else _NEEDED_BYTES


def driver_of(folder: Path, search_path: str) -> Driver:
    """The driver for a storage in `folder`, which exists; it is tried there once in a run."""
    if named := os.environ.get(VARIABLE):
        return Driver(name=named, why=f"${VARIABLE} asks for it")
    return tried(folder, search_path)


@functools.lru_cache
def tried(folder: Path, search_path: str) -> Driver:
    """The first driver that works in a folder."""
    reasons: list[str] = []
    for program, mount in _ways(search_path):
        if reason := _refusal(folder, mount):
            reasons.append(f"{mount[0]}: {reason}")
        else:
            return Driver(name=OVERLAY, program=program)
    if not shutil.which(_FUSE, path=search_path):
        reasons.append(f"{_FUSE}: not found")
    return Driver(name=VFS, why=f"overlay does not work there: {'; '.join(reasons)}")


def _ways(search_path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Ways to mount an overlay: the program that Buildah is to use, and a command that tries it."""
    own = "" if os.geteuid() == 0 else "userxattr,"
    yield "", ("mount", "-t", "overlay", "overlay", "-o", own + _LAYERS)
    if program := shutil.which(_FUSE, path=search_path):
        yield program, (_FUSE, "-o", _LAYERS)


def _refusal(folder: Path, mount: tuple[str, ...]) -> str:
    """Why an overlay cannot be mounted in a folder; empty if it can."""
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix=".overlay-"))
    try:
        argv = [*as_root_of_own(), "sh", "-c", _TRY, str(scratch), *mount]
        done = Processes().capture(argv, check=False, timeout_s=_TIMEOUT_S)
    except BuildImagesError as error:
        return str(error).splitlines()[0]
    finally:
        remove_tree(scratch)
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[0].removeprefix("mount: ") if done.returncode else ""
