"""The drivers of Buildah's storage, and the result of trying one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

OVERLAY, VFS = "overlay", "vfs"
# The largest space for one image while it is built and packed. `hpc-base` takes 1.3 GB in a
# storage with overlay, and 8.3 GB with vfs.
_NEEDED_BYTES = 3 << 30
_NEEDED_BY_VFS = 12 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """A storage driver. `program` mounts overlay if the kernel does not.

    `why` is the reason if it is not overlay. `options` are those of Buildah and Podman.
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
        """The driver's name in messages: `overlay`, `overlay by fuse-overlayfs`, `vfs`."""
        return f"{self.name} by {Path(self.program).name}" if self.program else self.name


def needed_bytes(driver: Driver) -> int:
    """Return the largest size in bytes of one image while it is built and packed."""
    return _NEEDED_BY_VFS if driver.name == VFS else _NEEDED_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageTrial:
    """The driver for a folder; `problem` is empty, or the reason why it does not work there."""

    driver: Driver
    problem: str = ""
    seconds: float = 0.0
