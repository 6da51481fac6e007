"""Inflates layers and tarballs: gzip by ISA-L where Python has it, else by zlib; Zstandard.

ISA-L takes half of zlib's time, and what both take comes to the same bytes. It is no check: some
damage that zlib refuses it does not see, so readers compare digests. It is used for reading only:
what it would compress is not what zlib does, and images are the same wherever they are made.
"""

from __future__ import annotations

import zlib
from typing import Any, Protocol, cast

import zstandard

gzip_library: Any
try:
    from isal import isal_zlib as gzip_library
except ImportError:  # ppc64le: it has no wheels there
    gzip_library = zlib

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # https://www.rfc-editor.org/rfc/rfc8878#section-3.1.1
# https://www.rfc-editor.org/rfc/rfc1952#section-2.3
_HEADER, _FLAGS, _NAME = 10, 3, 0x08
_WITH_HEADER = 16 + zlib.MAX_WBITS  # gzip's header and checksum, too
# Exceptions for damaged data.
DAMAGED = (zlib.error, cast("type[Exception]", gzip_library.error), zstandard.ZstdError)


class Inflater(Protocol):
    """One member of a gzip file, or one frame of Zstandard; as `zlib.decompressobj` gives them."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes: ...


def inflater(begin: bytes) -> Inflater:
    """Return an inflater for the next member of a gzip file, which begins so.

    ISA-L loses its place where a header with several optional parts comes in pieces; few have one.
    """
    plain = len(begin) >= _HEADER and not begin[_FLAGS] & ~_NAME
    library = gzip_library if plain else zlib
    return cast("Inflater", library.decompressobj(_WITH_HEADER))


class StreamInflater:
    """Inflates all of a file: members of gzip or frames of Zstandard, one after the other."""

    def __init__(self, *, zstd: bool) -> None:
        self._zstd = zstd
        self._inflater: Inflater | None = None

    @property
    def eof(self) -> bool:
        """True if the last member that began has ended."""
        return self._inflater is not None and self._inflater.eof

    def decompress(self, data: bytes) -> bytes:
        """Inflate the next bytes; raises one of `DAMAGED`."""
        inflated = bytearray()
        while data:
            if self._inflater is None or self._inflater.eof:
                frame = zstandard.ZstdDecompressor().decompressobj() if self._zstd else None
                self._inflater = cast("Inflater", frame) if frame else inflater(data)
            inflated += self._inflater.decompress(data)
            data = self._inflater.unused_data
        return bytes(inflated)
