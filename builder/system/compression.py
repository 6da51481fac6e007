"""Inflates layers and tarballs: gzip by ISA-L where Python has it, else by zlib; Zstandard.

ISA-L takes half of zlib's time, and what both take comes to the same bytes. It is no check: some
damage that zlib refuses it does not see, so whoever reads compares digests. It is used for reading
alone: what it would compress is not what zlib does, and images are the same wherever they are made.
"""

from __future__ import annotations

import ctypes
import zlib
from typing import Any, Protocol

MAGIC = b"\x28\xb5\x2f\xfd"  # https://www.rfc-editor.org/rfc/rfc8878#section-3.1.1
_LIBRARY = "libzstd.so.1"
_PIECE = 1 << 20


class ZstdError(Exception):
    """Data that are damaged, or no library to read them with."""


class _Buffer(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer: an address, a size, and how far it was read or written."""

    _fields_ = [
        ("address", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("position", ctypes.c_size_t),
    ]


class ZstdInflater:
    """All frames of a stream; `eof` is whether the last one that began has ended."""

    def __init__(self) -> None:
        self._library = _library()
        self._stream = self._library.ZSTD_createDStream()
        self._piece = ctypes.create_string_buffer(_PIECE)
        self.eof = False

    def __del__(self) -> None:
        if library := getattr(self, "_library", None):
            library.ZSTD_freeDStream(self._stream)

    def decompress(self, data: bytes) -> bytes:
        """Inflate the next bytes; raises `ZstdError` where they are damaged."""
        source = ctypes.create_string_buffer(data, len(data))
        packed = _Buffer(ctypes.addressof(source), len(data), 0)
        inflated = bytearray()
        is_full = False
        while packed.position < packed.size or is_full:
            piece = _Buffer(ctypes.addressof(self._piece), _PIECE, 0)
            call = self._library.ZSTD_decompressStream
            status = call(self._stream, ctypes.byref(piece), ctypes.byref(packed))
            if self._library.ZSTD_isError(status):
                name = self._library.ZSTD_getErrorName(status)
                raise ZstdError(f"damaged Zstandard data: {name.decode()}")
            inflated += self._piece.raw[: piece.position]
            is_full = piece.position == _PIECE
            self.eof = status == 0
        return bytes(inflated)


def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise ZstdError(f"{_LIBRARY} is needed to read Zstandard, and is not here") from error
    library.ZSTD_createDStream.restype = ctypes.c_void_p
    library.ZSTD_freeDStream.argtypes = [ctypes.c_void_p]
    library.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.ZSTD_decompressStream.restype = ctypes.c_size_t
    library.ZSTD_isError.argtypes = [ctypes.c_size_t]
    library.ZSTD_getErrorName.argtypes = [ctypes.c_size_t]
    library.ZSTD_getErrorName.restype = ctypes.c_char_p
    return library


way: Any
try:
    from isal import isal_zlib as way
except ImportError:  # ppc64le: it has no wheels there
    way = zlib

# https://www.rfc-editor.org/rfc/rfc1952#section-2.3
_HEADER, _FLAGS, _NAME = 10, 3, 0x08
_WITH_HEADER = 16 + zlib.MAX_WBITS  # gzip's header and checksum, too
# What is raised for data that are damaged.
DAMAGED: tuple[type[Exception], type[Exception], type[Exception]] = (
    zlib.error,
    way.error,
    ZstdError,
)


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


class GzipStream:
    """All members of a gzip file, one after the other."""

    def __init__(self) -> None:
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
                self._inflater = inflater(data)
            inflated += self._inflater.decompress(data)
            data = self._inflater.unused_data
        return bytes(inflated)


def stream_inflater(*, zstd: bool) -> GzipStream | ZstdInflater:
    """For all of a file that is gzipped, or packed with Zstandard."""
    return ZstdInflater() if zstd else GzipStream()
