"""Bodies that the cache of packages passes on, as they come, or up to a bound."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import requests

_MOST_PAGE = 64 << 20  # bytes
_CHUNK = 1 << 16
_MOST_LINE = 1 << 12  # bytes of what is between chunks
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Body:
    """A request's body of a known size, read from a connection as it is wanted."""

    def __init__(self, file: io.BufferedIOBase, size: int) -> None:
        self._file, self._size, self._left = file, size, size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read(_CHUNK):
            yield piece

    def read(self, size: int = _CHUNK) -> bytes:
        """At most 64 KiB; none at the end. Raises `EOFError` where the body breaks off."""
        wanted = min(self._left, _CHUNK, size if size >= 0 else _CHUNK)
        piece = self._file.read(wanted)
        if len(piece) < wanted:
            raise EOFError("the body breaks off")
        self._left -= len(piece)
        return piece


def chunks(file: io.BufferedIOBase) -> Iterator[bytes]:
    """The pieces of a body: https://www.rfc-editor.org/rfc/rfc9112#section-7.1

    Raises `ValueError` for what is none, `EOFError` where it breaks off.
    """
    while size := _size(file):
        yield from Body(file, size)
        _line(file)
    while _line(file):
        pass


def _size(file: io.BufferedIOBase) -> int:
    text = _line(file).partition(b";")[0].strip()
    if not _SIZE.fullmatch(text):
        raise ValueError("a chunk without its size")
    return int(text, 16)


def _line(file: io.BufferedIOBase) -> bytes:
    line = file.readline(_MOST_LINE)
    if len(line) == _MOST_LINE:
        raise ValueError("a line that is too long")
    return line.strip()


def page_of(answer: requests.Response) -> bytes | None:
    """The whole of a page, unpacked; None for one of more than 64 MiB."""
    page = bytearray()
    for piece in answer.iter_content(_CHUNK):
        page += piece
        if len(page) > _MOST_PAGE:
            return None
    return bytes(page)
