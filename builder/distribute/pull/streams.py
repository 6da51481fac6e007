"""A layer's blob as the plain bytes of its tar, checked against its digest while it is read."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts.oci import GZIP_MAGIC
from builder.model.digests import HashedReader
from builder.model.errors import Refused
from builder.system.compression import DAMAGED, Inflater, inflater

_CHUNK = 1 << 17
# How files begin that are compressed in a way that is not read here.
_OTHER_WAYS = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2"}
_PLAIN = 1 << 18  # what is hashed then is in the processor's cache still


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds for one image. Sizes are in bytes, `ratio` is plain bytes to one packed byte.

    The largest images of frameworks have half a million paths and 40 GB. Whatever is smaller than
    `small` may have any ratio: a file of zeros is packed to a thousandth.
    """

    entries: int = 2_000_000
    plain: int = 1 << 40
    ratio: int = 200
    small: int = 1 << 30
    header: int = 1 << 20  # of an extended header: paths, attributes
    path: int = 4096  # bytes; PATH_MAX of Linux
    name: int = 255  # bytes; NAME_MAX
    depth: int = 200
    layers: int = 1000

    def check_entries(self, number: int) -> None:
        """Raise `Refused` for more entries than an image has."""
        if number > self.entries:
            raise Refused(f"this looks like a bomb: more than {self.entries:,} entries")


LIMITS = Limits()


class Plain:
    """The bytes of a plain file, or of the members of a gzip file, within limits.

    It is read forward only. `label` names the layer in errors. `digest` is that of the plain bytes
    so far if they are `hashed`: at the end, a layer's `diff_id`.
    """

    def __init__(
        self,
        packed: HashedReader,
        limits: Limits,
        *,
        gzipped: bool,
        label: str,
        hashed: bool = False,
    ) -> None:
        self._packed, self._limits, self._label = packed, limits, label
        self._gzipped = gzipped
        self._hash = hashlib.sha256() if hashed else None
        self._inflater: Inflater | None = None
        self._rest, self._ready = b"", memoryview(b"")
        self._size = 0

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}" if self._hash else ""

    def tell(self) -> int:
        """Return the number of bytes that were taken."""
        return self._size - len(self._ready)

    def skip(self, size: int) -> None:
        """Go forward, at most to the end."""
        while size and (piece := self.read_ready(size)):
            size -= len(piece)

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        parts = []
        while size and (piece := self.read_ready(size)):
            parts.append(piece)
            size -= len(piece)
        return b"".join(parts)

    def read_ready(self, size: int) -> memoryview:
        """Return at most `size` bytes, as many as are ready, without a copy; none at the end."""
        if not self._ready:
            self._fill()
        part, self._ready = self._ready[:size], self._ready[size:]
        return part

    def _fill(self) -> None:
        """Get the next plain bytes ready; none at the end."""
        while not self._ready:
            data = self._rest or self._packed.read(_CHUNK)
            self._rest = b""
            if not self._gzipped:
                self._ready = memoryview(data)
            elif data:
                self._inflate(data)
                continue
            elif self._inflater is None or not self._inflater.eof:
                raise Refused(f"{self._label}: the compressed data break off")
            if not self._ready:
                return
        self._size += len(self._ready)
        most = max(self._limits.small, self._limits.ratio * self._packed.size)
        if self._size > min(most, self._limits.plain):
            packed = f"{self._packed.size:,} bytes become more than {self._size:,}"
            raise Refused(f"{self._label}: this looks like a bomb: {packed}")
        if self._hash:
            self._hash.update(self._ready)

    def _inflate(self, data: bytes) -> None:
        if self._inflater is None or self._inflater.eof:
            self._inflater = inflater(data)
        try:
            self._ready = memoryview(self._inflater.decompress(data, _PLAIN))
        except DAMAGED as error:
            raise Refused(f"{self._label}: the compressed data are damaged ({error})") from error
        self._rest = self._inflater.unconsumed_tail or self._inflater.unused_data


@contextlib.contextmanager
def opened(blob: Path, digest: str, limits: Limits, *, hashed: bool = False) -> Iterator[Plain]:
    """The plain bytes of a layer, `hashed` if their digest is needed, too.

    They are read to their end: a gzip file without its checksum, or with anything after it, is
    refused. Raises `Refused` at the end unless the blob has its digest.
    """
    with blob.open("rb") as file:
        begin = file.read(max(map(len, _OTHER_WAYS)))
        file.seek(0)
        for magic, way in _OTHER_WAYS.items():
            if begin.startswith(magic):
                raise Refused(f"{digest}: compression {way} is not supported; gzip and none are")
        packed, gzipped = HashedReader(file), begin.startswith(GZIP_MAGIC)
        plain = Plain(packed, limits, gzipped=gzipped, label=digest, hashed=hashed)
        yield plain
        while plain.read_ready(_CHUNK):
            pass
        while packed.read(_CHUNK):
            pass
    if packed.digest != digest:
        raise Refused(f"{digest}: the blob holds {packed.digest}")


def check_diff_id(diff_id: str, digest: str, diff_ids: Mapping[str, str]) -> None:
    """Refuse a layer whose plain bytes are not those that the image's configuration names."""
    expected = diff_ids.get(digest, diff_id)
    if diff_id != expected:
        raise Refused(f"{digest}: unpacked it is {diff_id}, and the configuration says {expected}")
