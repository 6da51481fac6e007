"""Bodies that the cache of packages forwards, as they come, or up to a limit."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import requests

_MOST_PAGE = 64 << 20  # bytes
_CHUNK = 1 << 16
_MOST_LINE = 1 << 12  # bytes between chunks
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Body:
    """A request's body of a known size, read from a connection on demand."""

    def __init__(self, file: io.BufferedIOBase, size: int) -> None:
        self._file, self._size, self._remaining = file, size, size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read(_CHUNK):
            yield chunk

    def read(self, size: int = _CHUNK) -> bytes:
        """Return at most 64 KiB; none at the end. Raises `EOFError` if the body breaks off."""
        length = min(self._remaining, _CHUNK, size if size >= 0 else _CHUNK)
        chunk = self._file.read(length)
        if len(chunk) < length:
            raise EOFError("the body breaks off")
        self._remaining -= len(chunk)
        return chunk


def chunks(file: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield the chunks of a body: https://www.rfc-editor.org/rfc/rfc9112#section-7.1

    Raises `ValueError` for an invalid one, `EOFError` if it breaks off.
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


def page_of(response: requests.Response) -> bytes | None:
    """Return a page, unpacked; None for one of more than 64 MiB."""
    page = bytearray()
    for chunk in response.iter_content(_CHUNK):
        page += chunk
        if len(page) > _MOST_PAGE:
            return None
    return bytes(page)
