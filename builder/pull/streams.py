"""A layer's blob as the plain bytes of its tar, checked against its digest while it is read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from builder.artifacts.oci import is_gzipped
from builder.digests import HashedReader
from builder.errors import Refused
from builder.inflating import DAMAGED, Inflater, inflater
from builder.pull.limits import Limits

_CHUNK = 1 << 17
_PLAIN = 1 << 18  # what is hashed then is in the processor's cache still


class Plain:
    """The bytes of a plain file, or of the members of a gzip file, within limits.

    It goes forward only, and is as much of a file as `tarfile.TarFile` needs.
    """

    def __init__(self, packed: HashedReader, limits: Limits, *, gzipped: bool, shown: str) -> None:
        self._packed, self._limits, self._shown = packed, limits, shown
        self._gzipped = gzipped
        self._inflater: Inflater | None = None
        self._rest, self._ready = b"", memoryview(b"")
        self._size = 0

    def tell(self) -> int:
        """How many bytes were taken."""
        return self._size - len(self._ready)

    def seek(self, position: int) -> None:
        """Go forward, at most to the end."""
        left = position - self.tell()
        if left < 0:
            raise ValueError("a tar that leads back")
        while left and (piece := self.some(left)):
            left -= len(piece)

    def peek(self, size: int) -> bytes:
        """The next bytes, which `some` takes then at once; fewer only at the end."""
        while len(self._ready) < size:
            rest, self._ready = self._ready, memoryview(b"")
            self._more()
            if not self._ready:
                self._ready = rest
                break
            self._ready = memoryview(b"".join((rest, self._ready)))
        return bytes(self._ready[:size])

    def read(self, size: int) -> bytes:
        """At most `size` bytes, fewer only at the end."""
        first = self.some(size)
        if len(first) == size or not first:
            return bytes(first)
        parts, wanted = [first], size - len(first)
        while wanted and (piece := self.some(wanted)):
            parts.append(piece)
            wanted -= len(piece)
        return b"".join(parts)

    def some(self, size: int) -> memoryview:
        """At most `size` bytes, as many as are ready, without a copy; none at the end."""
        if not self._ready:
            self._more()
        part, self._ready = self._ready[:size], self._ready[size:]
        return part

    def _more(self) -> None:
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
                raise Refused(f"{self._shown}: the compressed data break off")
            if not self._ready:
                return
        self._size += len(self._ready)
        self._check()

    def _inflate(self, data: bytes) -> None:
        if self._inflater is None or self._inflater.eof:
            self._inflater = inflater(data)
        try:
            self._ready = memoryview(self._inflater.decompress(data, _PLAIN))
        except DAMAGED as error:
            raise Refused(f"{self._shown}: the compressed data are damaged ({error})") from error
        self._rest = self._inflater.unconsumed_tail or self._inflater.unused_data

    def _check(self) -> None:
        ratio = self._size > self._limits.small and self._size > (
            self._limits.ratio * self._packed.size
        )
        if ratio or self._size > self._limits.plain:
            packed = f"{self._packed.size:,} bytes become more than {self._size:,}"
            raise Refused(f"{self._shown}: this looks like a bomb: {packed}")


@contextlib.contextmanager
def opened(blob: Path, digest: str, limits: Limits) -> Iterator[Plain]:
    """The plain bytes of a layer. Raises `Refused` at the end unless the blob has its digest."""
    gzipped = is_gzipped(blob)
    with blob.open("rb") as file:
        packed = HashedReader(file)
        yield Plain(packed, limits, gzipped=gzipped, shown=digest)
        while packed.read(_CHUNK):
            pass
    if packed.digest != digest:
        raise Refused(f"{digest}: the blob holds {packed.digest}")
