"""Files of package repositories: read from a URL and unpacked, both up to a limit.

Whoever keeps a mirror writes them, so nothing is taken at its word: neither the size that a server
names, nor that a packed file is as small when it is unpacked.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import requests

from builder.system.compression import DAMAGED, StreamInflater
from builder.system.web import innermost
from builder.verify.rehearse.index import OutOfReach

# Ubuntu's universe is 15 MB packed and 65 MB unpacked; EPEL's primary.xml 4 and 40.
LARGEST_PACKED, LARGEST = 128 << 20, 1 << 30  # bytes
_LARGEST_DICTIONARY = 256 << 20  # bytes that xz may ask for
_PIECE = 4 << 10  # bytes; few, since they may unpack to 30,000 times as many
_TIMEOUT_S = 120.0
_GONE = frozenset({404, 410})
_XZ, _GZIP, _ZSTD = b"\xfd7zXZ\0", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class NotInRepository(OutOfReach):
    """The repository answers, and has no such file."""


ReadUrl = Callable[[str], bytes]  # raises `OutOfReach`


def read_url(url: str) -> bytes:
    """The bytes at an `https:`, `http:` or `file:` URL. Raises `OutOfReach`."""
    name = url.rpartition("/")[2]
    try:
        if url.startswith("file:"):
            return _read_file(Path(unquote(urlsplit(url).path)))
        return _download(url, name)
    except (requests.RequestException, OSError) as error:
        raise OutOfReach(f"{name} cannot be read: {innermost(error)}") from error


def _read_file(path: Path) -> bytes:
    if not path.is_file():
        raise NotInRepository(f"it has no {path.name}")
    with path.open("rb") as file:
        data = file.read(LARGEST_PACKED + 1)
    _check_size(len(data), path.name)
    return data


def _download(url: str, name: str) -> bytes:
    with requests.get(url, timeout=_TIMEOUT_S, stream=True) as answer:
        if answer.status_code in _GONE:
            raise NotInRepository(f"it has no {name} ({answer.status_code})")
        answer.raise_for_status()
        data = bytearray()
        for piece in answer.iter_content(1 << 20):
            data += piece
            _check_size(len(data), name)
    return bytes(data)


def _check_size(size: int, name: str) -> None:
    if size > LARGEST_PACKED:
        raise OutOfReach(f"{name} is larger than {LARGEST_PACKED >> 20} MiB")


def unpacked(data: bytes) -> Iterator[bytes]:
    """The pieces of what xz, gzip or Zstandard packed, or of a plain file. Raises `OutOfReach`."""
    inflater = _inflater(data)
    if inflater is None:
        yield data
        return
    size = 0
    for start in range(0, len(data), _PIECE):
        try:
            piece = inflater.decompress(data[start : start + _PIECE])
        except (*DAMAGED, lzma.LZMAError, EOFError) as error:
            raise OutOfReach(f"it is damaged: {innermost(error)}") from error
        size += len(piece)
        if size > LARGEST:
            raise OutOfReach(f"unpacked it is larger than {LARGEST >> 20} MiB")
        yield piece
    if not inflater.eof:
        raise OutOfReach("it is cut off")


class _Inflater(Protocol):
    @property
    def eof(self) -> bool: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _inflater(data: bytes) -> _Inflater | None:
    if data.startswith(_XZ):
        return lzma.LZMADecompressor(memlimit=_LARGEST_DICTIONARY)
    if data.startswith((_GZIP, _ZSTD)):
        return StreamInflater(zstd=data.startswith(_ZSTD))
    return None


def lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The lines of a text in pieces, without their ends."""
    rest = b""
    for piece in pieces:
        *complete, rest = (rest + piece).split(b"\n")
        yield from complete
    yield rest
