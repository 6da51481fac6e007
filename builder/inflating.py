"""Inflates gzip files: by ISA-L where Python has it, else by zlib. Both give the same bytes.

ISA-L takes less than half of zlib's time. It is used for reading alone: what it would compress is
not what zlib does, and images are the same wherever they are built.
"""

from __future__ import annotations

import zlib
from typing import Any, Protocol

way: Any
try:
    from isal import isal_zlib as way
except ImportError:  # ppc64le: it has no wheels there
    way = zlib

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


def inflater() -> Inflater:
    """For the next member of a gzip file."""
    found: Inflater = way.decompressobj(_WITH_HEADER)
    return found
