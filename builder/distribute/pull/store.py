"""Blobs that were brought from registries, whole ones alone: the next pull goes on from there."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from builder.distribute.pull.owning import is_own_file, make_own
from builder.model.digests import sha256_of_file
from builder.registry import Descriptor, Source
from builder.system.locks import locked

_MODE = 0o644  # whatever the umask
_FULL = frozenset([errno.ENOSPC, errno.EDQUOT])


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """A folder of blobs by their SHA-256; several pulls use it at once, all of one user.

    Nobody else gets there: a blob that was checked is the same when it is shown elsewhere. Its mode
    is 0644, since that of what is shown is the same.

    A blob that comes is `HEX.partial`, which is gone on with after an interruption; it has its
    name when it is whole and has its digest. `on_bytes` is told how many bytes came, `tell` of what
    is waited for; `check` raises what is to end that.
    """

    folder: Path
    check: Callable[[], object] = lambda: None
    tell: Callable[[str], object] = lambda _: None
    on_bytes: Callable[[int], object] = lambda _: None

    def get(self, registry: Source, blob: Descriptor) -> Path:
        """A blob, fetched unless it is here. What is here is read again before it is believed.

        Raises `Refused` where others could change what is kept.
        """
        make_own(self.folder)
        name = blob.digest.partition(":")[2]
        file = self.folder / name
        with locked(
            self.folder,
            name,
            waiting=lambda: self.tell(f"waiting for another pull that brings {blob.digest}"),
            stopped=lambda: bool(self.check()),
        ):
            if is_own_file(file) and _is(file, name):
                file.chmod(_MODE)
                file.touch()  # `gc` removes what no pull took lately
            else:
                file.unlink(missing_ok=True)
                partial = self.folder / f"{name}.partial"
                if not is_own_file(partial):
                    partial.unlink(missing_ok=True)
                try:
                    registry.read_blob(blob, partial, on_bytes=self.on_bytes)
                except OSError as error:
                    if error.errno in _FULL:
                        partial.unlink(missing_ok=True)
                    raise
                partial.chmod(_MODE)
                partial.rename(file)
        return file

    def place(self, blob: Path, target: Path) -> None:
        """Show a blob at another path, without a copy where the file system allows it."""
        try:
            target.hardlink_to(blob)
        except OSError:
            _copy(blob, target)

    def give(self, blob: Path, target: Path) -> None:
        """Show a blob at a path whose owner may change it; copied if it is shown elsewhere."""
        with locked(self.folder, blob.name):
            if blob.stat().st_nlink > 1:
                _copy(blob, target)
            else:
                self.place(blob, target)

    def forget(self, blob: Path) -> None:
        """Remove a blob that has a new owner."""
        with locked(self.folder, blob.name):
            blob.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(_MODE)


def _is(file: Path, digest: str) -> bool:
    return sha256_of_file(file) == digest
