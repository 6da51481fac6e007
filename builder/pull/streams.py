"""A layer's blob as the plain bytes of its tar, checked against its digest while it is read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from builder.artifacts.oci import is_gzipped
from builder.errors import Refused
from builder.pull.limits import Limits

_CHUNK = 1 << 18
_PLAIN = 1 << 20
_WITH_HEADER = 16 + zlib.MAX_WBITS  # gzip's header and checksum, too


class _Packed(io.RawIOBase):
    """A file that is read from start to end, hashed and counted meanwhile."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file, self._hash = file, hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        self.size += len(data)
        return data


class _Plain(io.RawIOBase):
    """The bytes of a plain file, or of the members of a gzip file, within limits."""

    def __init__(self, packed: _Packed, limits: Limits, *, gzipped: bool, shown: str) -> None:
        super().__init__()
        self._packed, self._limits, self._shown = packed, limits, shown
        self._inflater = zlib.decompressobj(_WITH_HEADER) if gzipped else None
        self._rest, self._ready = b"", b""
        self._size = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, fewer only at the end."""
        parts, wanted = [], size
        while wanted:
            if not self._ready and not self._more():
                break
            part, self._ready = self._ready[:wanted], self._ready[wanted:]
            parts.append(part)
            wanted -= len(part)
        return b"".join(parts)

    def _more(self) -> bool:
        """Get the next plain bytes ready; False at the end."""
        while not self._ready:
            data = self._rest or self._packed.read(_CHUNK)
            self._rest = b""
            if self._inflater is None:
                self._ready = data
            elif data:
                self._inflate(data)
                continue
            elif not self._inflater.eof:
                raise Refused(f"{self._shown}: the compressed data break off")
            if not self._ready:
                return False
        self._size += len(self._ready)
        self._check()
        return True

    def _inflate(self, data: bytes) -> None:
        assert self._inflater is not None
        if self._inflater.eof:
            self._inflater = zlib.decompressobj(_WITH_HEADER)
        try:
            self._ready = self._inflater.decompress(data, _PLAIN)
        except zlib.error as error:
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
def opened(blob: Path, digest: str, limits: Limits) -> Iterator[IO[bytes]]:
    """The plain bytes of a layer. Raises `Refused` at the end unless the blob has its digest."""
    gzipped = is_gzipped(blob)
    with blob.open("rb") as file:
        packed = _Packed(file)
        yield cast("IO[bytes]", _Plain(packed, limits, gzipped=gzipped, shown=digest))
        while packed.read(_CHUNK):
            pass
    if packed.digest != digest:
        raise Refused(f"{digest}: the blob holds {packed.digest}")
