"""Decompress layers and tarballs: gzip with ISA-L if installed, else with zlib; Zstandard.

ISA-L takes half of zlib's time and returns the same bytes. It is not a check: it misses some damage
that zlib detects, so readers compare digests. It is not used for writing: its compressed output
differs from zlib's, and an image must have the same bytes on every machine.
"""

from __future__ import annotations

import zlib
from typing import Any, Protocol, cast

import zstandard

gzip_library: Any
try:
    from isal import isal_zlib as gzip_library
except ImportError:  # there are no wheels for ppc64le
    gzip_library = zlib

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # https://www.rfc-editor.org/rfc/rfc8878#section-3.1.1
# https://www.rfc-editor.org/rfc/rfc1952#section-2.3
_HEADER, _FLAGS, _NAME = 10, 3, 0x08
_WITH_HEADER = 16 + zlib.MAX_WBITS  # with gzip's header and checksum
# Exceptions for damaged data.
DAMAGED = (zlib.error, cast("type[Exception]", gzip_library.error), zstandard.ZstdError)


class Inflater(Protocol):
    """A decompressor for one gzip member or Zstandard frame, like `zlib.decompressobj`."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes: ...


def inflater(begin: bytes) -> Inflater:
    """Return an inflater for the next member of a gzip file; `begin` are its first bytes.

    ISA-L fails if a header with several optional parts arrives in pieces; such headers are rare.
    """
    plain = len(begin) >= _HEADER and not begin[_FLAGS] & ~_NAME
    library = gzip_library if plain else zlib
    return cast("Inflater", library.decompressobj(_WITH_HEADER))


class StreamInflater:
    """Decompresses a whole file: consecutive gzip members or Zstandard frames."""

    def __init__(self, *, zstd: bool) -> None:
        self._zstd = zstd
        self._inflater: Inflater | None = None

    @property
    def eof(self) -> bool:
        """True if the last member or frame is complete."""
        return self._inflater is not None and self._inflater.eof

    def decompress(self, data: bytes) -> bytes:
        """Decompress the next bytes; raises one of `DAMAGED`."""
        inflated = bytearray()
        while data:
            if self._inflater is None or self._inflater.eof:
                frame = zstandard.ZstdDecompressor().decompressobj() if self._zstd else None
                self._inflater = cast("Inflater", frame) if frame else inflater(data)
            inflated += self._inflater.decompress(data)
            data = self._inflater.unused_data
        return bytes(inflated)
