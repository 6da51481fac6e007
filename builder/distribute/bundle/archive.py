"""Read the blobs of an archive: one pass over the headers finds them, and digests are checked.

No member is ever unpacked. Archives with any file that no image layout has are refused. This keeps
out paths that lead elsewhere, links, devices, duplicate names, and extensions of the tar format
that readers interpret differently.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from builder.model.errors import BadInput, Interrupted
from builder.registry import Descriptor, WrongContent
from builder.registry.manifests import LARGEST_MANIFEST, json_object
from builder.system.web import printable

LAYOUT, INDEX_FILE = "oci-layout", "index.json"
BLOCK = 512
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
_FOLDERS = frozenset({"blobs", "blobs/sha256"})
_ZERO = bytes(BLOCK)
_PIECE = 1 << 20
_MOST_AFTER = 1 << 20  # zeros after the end marker; tar pads its output to 10 KiB
_MOST = 1_000_000  # members; archives of `bundle` have far fewer
# An archive of the largest matrix has some 10,000 manifests: 400 bytes and 12 values each.
_LARGEST_INDEX = 32 << 20
MOST_MANIFESTS = 50_000
_MOST_VALUES = 20 * MOST_MANIFESTS
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # do not wait for the writer of a pipe
_AGAIN = "copy it again from its origin, and compare the checksum"


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteRange:
    """Offset and size of a member's bytes in the archive."""

    offset: int
    size: int


class Archive:
    """An archive that holds an image layout; any number of threads may read it."""

    def __init__(
        self, path: Path, files: Mapping[str, ByteRange], blobs: Mapping[str, ByteRange]
    ) -> None:
        self.path, self._files, self.blobs = path, files, blobs
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Have every reader raise `Interrupted`."""
        self._stopped.set()

    def check(self) -> None:
        """Raise `Interrupted` after `stop`."""
        if self._stopped.is_set():
            raise Interrupted("interrupted")

    def document(self, name: str) -> dict[str, object]:
        """Return the JSON of `oci-layout` or `index.json`."""
        place = self._files.get(name)
        if place is None:
            raise BadInput(f"{self.path}: not an image layout: {name} is missing")
        if place.size > _LARGEST_INDEX:
            raise self.wrong(f"its {name} has more than {_LARGEST_INDEX} bytes")
        content = b"".join(self._pieces(place))
        return json_object(content, f"{self.path}: {name}", _MOST_VALUES)

    def small(self, digest: str, limit: int = LARGEST_MANIFEST) -> bytes:
        """Return the bytes of a blob that is at most `limit` bytes."""
        if (size := self.place(digest).size) > limit:
            raise self.wrong(f"{digest} has {size} bytes; the limit is {limit}")
        return b"".join(self.pieces(digest))

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield a blob's bytes; raises `WrongContent` at the end unless they have the digest."""
        sha256 = hashlib.sha256()
        for piece in self._pieces(self.place(digest)):
            sha256.update(piece)
            yield piece
        if f"sha256:{sha256.hexdigest()}" != digest:
            raise self.wrong(f"blob {digest} has the digest sha256:{sha256.hexdigest()}")

    def check_all(self, on_bytes: Callable[[int], object] = lambda _: None) -> None:
        """Read every blob and check its digest."""
        for digest in self.blobs:
            for piece in self.pieces(digest):
                on_bytes(len(piece))

    def place(self, digest: str) -> ByteRange:
        """Return the byte range of a blob; raises `WrongContent` if the archive lacks it."""
        place = self.blobs.get(digest)
        if place is None:
            raise self.wrong(f"blob {digest} is missing")
        return place

    def check_size(self, blob: Descriptor) -> None:
        """Raise `WrongContent` unless the archive has the blob, with the expected size."""
        size = self.place(blob.digest).size
        if size != blob.size:
            raise self.wrong(f"blob {blob.digest} has {size} bytes, expected {blob.size}")

    def _pieces(self, place: ByteRange) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(place.offset)
            remaining = place.size
            while remaining:
                self.check()
                piece = file.read(min(_PIECE, remaining))
                if not piece:
                    raise self.wrong("the file became shorter while it was read")
                remaining -= len(piece)
                yield piece

    def wrong(self, why: str) -> WrongContent:
        """Return the error that refuses the archive."""
        return refusal(self.path, why)


def open_archive(path: Path) -> Archive:
    """Open an archive and read its headers.

    Raises `BadInput` for a file that is not a tar archive, and `WrongContent` for an archive that
    is truncated or holds anything but an image layout.
    """
    files: dict[str, ByteRange] = {}
    blobs: dict[str, ByteRange] = {}
    try:
        with os.fdopen(os.open(path, _OPEN), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _no_tar(path)
            for name, place in _members(file, path):
                blob = _BLOB.fullmatch(name)
                known, key = (blobs, f"sha256:{blob[1]}") if blob else (files, name)
                if not blob and name not in {LAYOUT, INDEX_FILE}:
                    raise refusal(path, f'unexpected file in an image layout: "{printable(name)}"')
                if key in known:
                    raise refusal(path, f"duplicate file: {name}")
                known[key] = place
    except (IsADirectoryError, FileNotFoundError, PermissionError) as error:
        raise BadInput(f"{path}: {error.strerror}", hint="name an archive from `bundle`") from error
    return Archive(path, files, blobs)


def _members(file: IO[bytes], path: Path) -> Iterator[tuple[str, ByteRange]]:
    size = file.seek(0, 2)
    offset = 0
    for _ in range(_MOST):
        file.seek(offset)
        block = file.read(BLOCK)
        if block == _ZERO and file.read(BLOCK) == _ZERO:
            _check_end(file, path)
            return
        if len(block) < BLOCK or block == _ZERO:
            raise _cut(path) if offset else _no_tar(path)
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            problem = f"invalid tar header at byte {offset}"
            raise refusal(path, problem, hint=_AGAIN) if offset else _no_tar(path) from error
        offset += BLOCK
        if member.type == tarfile.DIRTYPE and member.name in _FOLDERS and not member.size:
            continue
        if member.type not in _PLAIN or member.size < 0:
            raise refusal(path, f'"{printable(member.name)}" is not a regular file')
        if offset + member.size > size:
            raise _cut(path)
        yield member.name, ByteRange(offset=offset, size=member.size)
        offset += padded(member.size)
    raise refusal(path, f"more than {_MOST:,} files")


def padded(size: int) -> int:
    """Return the number of bytes that content of `size` bytes takes in a tar file."""
    return -(-size // BLOCK) * BLOCK


def _check_end(file: IO[bytes], path: Path) -> None:
    """Refuse data after the end marker: some tar readers read a second archive there."""
    rest = file.read(_MOST_AFTER + 1)
    if len(rest) > _MOST_AFTER or rest.strip(b"\0"):
        raise refusal(path, "data after the end of the archive")


def _no_tar(path: Path) -> BadInput:
    return BadInput(f"{path}: not a tar archive", hint="name an archive from `bundle`")


def _cut(path: Path) -> WrongContent:
    return refusal(path, "the archive is truncated", hint=_AGAIN)


def refusal(path: Path, why: str, hint: str = "") -> WrongContent:
    """Return the error that refuses an archive."""
    return WrongContent(f"{path}: {why}", hint=hint)
