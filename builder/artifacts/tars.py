"""Tar files written member by member, with content from anywhere."""

from __future__ import annotations

import tarfile
from collections.abc import Hashable, Sequence
from typing import IO, Protocol

from builder.artifacts.gzips import PART, Gzip, Place

APART = 1 << 16  # files from this size on are gzipped as parts of their own
_BLOCK = tarfile.BLOCKSIZE


class Sink(Protocol):
    """What sees the bytes of a tar before they are compressed."""

    def write(self, data: bytes, /) -> object:
        """Take the next bytes."""


class GzippedTar:
    """A tar file that is gzipped as it is written; `plain` sees it uncompressed."""

    def __init__(self, gzip: Gzip, plain: Sink | None = None) -> None:
        self.size = 0  # plain bytes until now
        self._gzip, self._plain = gzip, plain

    def add(self, member: tarfile.TarInfo, data: IO[bytes] | None = None) -> None:
        """Add a member, with `member.size` bytes of content for a regular file.

        The parts of a large file are kept among the gzip file's `places`, by the content's offset
        in the tar.
        """
        self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if data is None:
            return
        key = self.size if member.size >= APART else None
        left = member.size
        while left:
            chunk = data.read(min(left, PART))
            if not chunk:
                raise EOFError(f"/{member.name}: {left} bytes are missing")
            left -= len(chunk)
            self._write(chunk, key)
        self._pad(member.size)

    def add_again(self, member: tarfile.TarInfo, places: Sequence[Place], file: IO[bytes]) -> None:
        """Add a large file whose parts lie in another gzip file."""
        assert self._plain is None
        self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self._gzip.write_again(places, file)
        self.size += member.size
        self._pad(member.size)

    def close(self) -> None:
        """Write the two empty blocks that end a tar, and the end of the gzip file."""
        self._write(bytes(2 * _BLOCK))
        self._gzip.close()

    def _pad(self, size: int) -> None:
        self._write(bytes(-size % _BLOCK))

    def _write(self, data: bytes, key: Hashable = None) -> None:
        self.size += len(data)
        if self._plain is not None:
            self._plain.write(data)
        if key is None:
            self._gzip.write(data)
        else:
            self._gzip.write_apart(data, key)


PAX = "SCHILY.xattr."  # what stands before an attribute's name in a pax header
Attributes = tuple[tuple[str, str], ...]  # names and values, sorted
# Of the build host: its policy's label, the notes of its storage drivers, and the owners that an
# ordinary user's Apptainer could not give.
_OF_HOST = (
    "security.selinux",
    "trusted.overlay.",  # https://docs.kernel.org/filesystems/overlayfs.html
    "user.overlay.",  # the same, of ordinary users
    "user.fuseoverlayfs.",
    "user.containers.",
    "user.rootlesscontainers",
)
_OF_ROOT = ("security.", "trusted.")


def attributes_of(member: tarfile.TarInfo) -> Attributes:
    """The attributes of a tar's member, without those of the host that it comes from."""
    headers = member.pax_headers
    if not headers:
        return ()
    names = (name.removeprefix(PAX) for name in sorted(headers) if name.startswith(PAX))
    return tuple((name, headers[PAX + name]) for name in names if not name.startswith(_OF_HOST))


def users_attributes(member: tarfile.TarInfo) -> Attributes:
    """Those that every user may give: every format keeps them, whoever packs it."""
    return tuple(one for one in attributes_of(member) if not one[0].startswith(_OF_ROOT))


def roots_attributes(member: tarfile.TarInfo) -> Attributes:
    """Those that only root may give, such as a program's capabilities."""
    return tuple(one for one in attributes_of(member) if one[0].startswith(_OF_ROOT))


def as_headers(attributes: Attributes) -> dict[str, str]:
    """Attributes as a member's pax headers."""
    return {PAX + name: text for name, text in attributes}
