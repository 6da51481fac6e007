"""The store of blobs that all pulls share, and that are kept for later ones."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.distribute.pull.folders import is_own_file, make_own
from builder.model.digests import sha256_of_file
from builder.registry import Descriptor, Source
from builder.system.locks import locked

_MODE = 0o644  # independent of the umask
_FULL = frozenset([errno.ENOSPC, errno.EDQUOT])


@dataclass(frozen=True, kw_only=True, slots=True)
class BlobStore:
    """A folder of blobs, named by SHA-256; several pulls of one user may use it at once.

    Only this user has access, so a checked blob stays unchanged when it is linked elsewhere. Blobs
    have the mode 0644, which their links share. An incomplete blob is `HEX.partial`, and its
    download is resumed. `tell` gets a line while this pull waits for another one.
    """

    folder: Path
    tell: Callable[[str], object] = lambda _: None

    def get(self, registry: Source, blob: Descriptor) -> Path:
        """Return the file of a blob; fetch it if it is missing; see `held`."""
        with self.held(registry, blob) as file:
            return file

    @contextlib.contextmanager
    def held(self, registry: Source, blob: Descriptor) -> Iterator[Path]:
        """Lock a blob and yield its file; fetch it if it is missing, else check it again.

        The caller may move the file away. Raises `Refused` if others could change the folder.
        """
        make_own(self.folder)
        name = blob.digest.partition(":")[2]
        with locked(
            self.folder,
            name,
            waiting=lambda holder: self.tell(f"waiting for {holder}, which fetches {blob.digest}"),
            stopped=lambda: bool(registry.check()),
        ):
            file = self.folder / name
            if is_own_file(file) and sha256_of_file(file) == name:
                file.touch()  # `gc` removes blobs that no pull used lately
            else:
                file.unlink(missing_ok=True)
                self._fetch(registry, blob, file)
            file.chmod(_MODE)
            yield file

    def _fetch(self, registry: Source, blob: Descriptor, file: Path) -> None:
        partial = file.with_name(f"{file.name}.partial")
        if not is_own_file(partial):
            partial.unlink(missing_ok=True)
        try:
            registry.read_blob(blob, partial)
        except OSError as error:
            if error.errno in _FULL:
                partial.unlink(missing_ok=True)
            raise
        partial.rename(file)


def place(blob: Path, target: Path) -> None:
    """Link a blob to another path, or copy it if the file system allows no link."""
    try:
        target.hardlink_to(blob)
    except OSError:
        shutil.copyfile(blob, target)
        target.chmod(_MODE)
