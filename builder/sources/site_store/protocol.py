"""The Protocol of places that hold a site's store: blobs by digest, and one tag for each key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from builder.registry import Descriptor


class StorePlace(Protocol):
    """The place of a store. All threads may share a value.

    Every method may raise errors of the registry (`builder.registry.failures`) or `OSError`.
    """

    name: str

    def manifest(self, tag: str) -> bytes | None:
        """Return the manifest of a tag; None if there is no such tag."""

    def has(self, blob: Descriptor) -> bool:
        """Return whether a blob is there."""

    def read(self, blob: Descriptor, path: Path) -> None:
        """Write a blob to a new file; raises `WrongContent` if its digest differs."""

    def write(self, path: Path, blob: Descriptor) -> None:
        """Add a blob from a file."""

    def set_tag(self, tag: str, manifest: bytes) -> None:
        """Add a manifest, and let a tag name it. All its blobs must be there."""

    def note_use(self, tag: str) -> None:
        """Note that a tag was used now, if the place records that."""

    def drop(self, blob: Descriptor) -> None:
        """Remove a damaged blob, so that it is written again."""

    def tags(self) -> list[str]:
        """Return all tags."""

    def used_at(self, tag: str) -> float | None:
        """Return when a tag was last used, in seconds since 1970; None if that is not recorded."""

    def remove(self, tags: Sequence[str]) -> None:
        """Remove tags, and the blobs that no other tag needs if the place does that itself."""

    def stop(self) -> None:
        """End the requests of other threads; they raise `Interrupted`."""
