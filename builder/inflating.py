"""Inflates gzip files: by ISA-L where Python has it, else by zlib.

ISA-L takes half of zlib's time, and what both take comes to the same bytes. It is no check: some
damage that zlib refuses it does not see, so whoever reads compares digests. It is used for reading
alone: what it would compress is not what zlib does, and images are the same wherever they are made.
"""

from __future__ import annotations

import zlib
from typing import Any, Protocol

way: Any
try:
    from isal import isal_zlib as way
except ImportError:  # ppc64le: it has no wheels there
    way = zlib

# https://www.rfc-editor.org/rfc/rfc1952#section-2.3
_HEADER, _FLAGS, _NAME = 10, 3, 0x08
_WITH_HEADER = 16 + zlib.MAX_WBITS  # gzip's header and checksum, too
# What is raised for data that are damaged.
DAMAGED: tuple[type[Exception], type[Exception]] = (zlib.error, way.error)


class Inflater(Protocol):
    """One member of a gzip file; as `zlib.decompressobj` gives them."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes: ...


def inflater(begin: bytes) -> Inflater:
    """For the next member of a gzip file, which begins so.

    ISA-L loses its place where a header with several optional parts comes in pieces; few have one.
    """
    plain = len(begin) >= _HEADER and not begin[_FLAGS] & ~_NAME
    found: Inflater = (way if plain else zlib).decompressobj(_WITH_HEADER)
    return found
