"""Read a layer's blob as the plain bytes of its tar, and check its digests on the way."""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts.oci import GZIP_MAGIC
from builder.model.digests import HashedReader
from builder.model.errors import Refused
from builder.system.compression import DAMAGED, inflater

_CHUNK = 1 << 17
# Magic numbers of unsupported compressions.
_OTHER_WAYS = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2"}
_BEGIN = 64  # bytes that tell the compression
PIECE = 1 << 18  # small enough to be in the processor's cache when it is hashed


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerLimits:
    """Bounds for one image. Sizes are in bytes, `ratio` is plain bytes to one packed byte.

    The largest images of frameworks have half a million paths and 40 GB. A layer of less than
    `small` plain bytes may have any ratio: a file of zeros shrinks to a thousandth.
    """

    entries: int = 2_000_000
    plain: int = 1 << 40
    ratio: int = 200
    small: int = 1 << 30
    header: int = 1 << 20  # extended headers hold paths and attributes
    path: int = 4096  # bytes; PATH_MAX of Linux
    name: int = 255  # bytes; NAME_MAX
    depth: int = 200
    layers: int = 1000

    def check_entries(self, number: int) -> None:
        """Raise `Refused` for more entries than an image may have."""
        if number > self.entries:
            raise Refused(f"possible decompression bomb: more than {self.entries:,} entries")


LIMITS = LayerLimits()


class PlainLayer:
    """The bytes of a plain file, or of the members of a gzip file, within limits.

    It is read forward only. `label` names the layer in errors. If `hashed`, `digest` is that of the
    plain bytes so far; at the end, it is the layer's `diff_id`.
    """

    def __init__(self, packed: HashedReader, *, label: str, hashed: bool) -> None:
        self._packed, self._label = packed, label
        self._chunks = _plain(packed, label)
        self._hash = hashlib.sha256() if hashed else None
        self._ready = memoryview(b"")
        self._size = 0

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}" if self._hash else ""

    def read(self, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end."""
        pieces = []
        while size and (piece := self.read_ready(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Yield the next `size` bytes, without a copy. Raises `tarfile.ReadError` at the end."""
        while size:
            piece = self.read_ready(size)
            if not piece:
                raise tarfile.ReadError("unexpected end of data")
            size -= len(piece)
            yield piece

    def read_ready(self, size: int) -> memoryview:
        """Return the bytes that are ready, at most `size`, without a copy; empty at the end."""
        if not self._ready:
            self._fill()
        piece, self._ready = self._ready[:size], self._ready[size:]
        return piece

    def _fill(self) -> None:
        self._ready = memoryview(next(self._chunks, b""))
        self._size += len(self._ready)
        most = max(LIMITS.small, LIMITS.ratio * self._packed.size)
        if self._size > min(most, LIMITS.plain):
            packed = f"{self._packed.size:,} bytes expand to more than {self._size:,}"
            raise Refused(f"{self._label}: possible decompression bomb: {packed}")
        if self._hash:
            self._hash.update(self._ready)


def _plain(packed: HashedReader, label: str) -> Iterator[bytes]:
    """Yield the plain bytes of a file; its first bytes, read only once, show if it is gzip.

    Each read may return fewer bytes than there will be.
    """
    data = b""
    while len(data) < _BEGIN and (more := packed.read(_BEGIN - len(data))):
        data += more
    for magic, way in _OTHER_WAYS.items():
        if data.startswith(magic):
            raise Refused(f"{label}: compression {way} is not supported; use gzip or none")
    if data.startswith(GZIP_MAGIC):
        yield from _inflated(data, packed, label)
        return
    while data:
        yield data
        data = packed.read(_CHUNK)


def _inflated(data: bytes, packed: HashedReader, label: str) -> Iterator[bytes]:
    """Yield the plain bytes of all members of a gzip file, which begins with `data`."""
    while data:
        member = inflater(data)
        while not member.eof:
            data = data or packed.read(_CHUNK)
            if not data:
                raise Refused(f"{label}: the compressed data is truncated")
            try:
                plain = member.decompress(data, PIECE)
            except DAMAGED as error:
                raise Refused(f"{label}: the compressed data is damaged ({error})") from error
            data = member.unconsumed_tail
            if plain:
                yield plain
        data = member.unused_data or packed.read(_CHUNK)


@contextlib.contextmanager
def opened(blob: Path, digest: str, diff_id: str = "") -> Iterator[PlainLayer]:
    """Open a layer as its plain bytes; on exit, the rest is read.

    A gzip file without its checksum, or with data after it, is refused. Raises `Refused` on exit
    unless the blob has its digest, and, if the image's configuration names a `diff_id`, the plain
    bytes have that digest.
    """
    with blob.open("rb") as file:
        packed = HashedReader(file)
        plain = PlainLayer(packed, label=digest, hashed=bool(diff_id))
        yield plain
        while plain.read_ready(_CHUNK):
            pass
    if packed.digest != digest:
        raise Refused(f"{digest}: the blob has the digest {packed.digest}")
    if plain.digest != diff_id:
        problem = f"unpacked digest is {plain.digest}, but the configuration has {diff_id}"
        raise Refused(f"{digest}: {problem}")
