"""Zstandard, as some registries keep layers: inflated by the system's libzstd, if it is there.

Python has a module of its own since 3.14 only: https://docs.python.org/3.14/library/compression.zstd.html
The calls: https://facebook.github.io/zstd/zstd_manual.html, "Streaming decompression".
"""

from __future__ import annotations

import ctypes

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
            left = call(self._stream, ctypes.byref(piece), ctypes.byref(packed))
            if self._library.ZSTD_isError(left):
                name = self._library.ZSTD_getErrorName(left)
                raise ZstdError(f"damaged Zstandard data: {name.decode()}")
            inflated += self._piece.raw[: piece.position]
            is_full = piece.position == _PIECE
            self.eof = left == 0
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
