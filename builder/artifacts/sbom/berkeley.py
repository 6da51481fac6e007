"""The values in a Berkeley DB file of hash format, read in order of its pages.

https://github.com/berkeleydb/libdb/blob/v5.3.28/src/dbinc/db_page.h has the pages' layout. Numbers
are in the byte order of the machine that wrote the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = 0x061561
_HASH_PAGES = frozenset([2, 13])  # unsorted, and sorted
_OVERFLOW_PAGE = 7
_HEADER = 26  # bytes before a page's items
_ON_PAGE, _OFF_PAGE = 1, 3
_LEAST_PAGE, _LARGEST_PAGE = 512, 65536


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    order: str  # of struct: < or >
    size: int  # of a page

    def page(self, number: int) -> bytes:
        page = self.data[number * self.size : (number + 1) * self.size]
        if len(page) != self.size:
            raise ValueError("a Berkeley DB file that breaks off")
        return page

    def number(self, page: bytes, at: int, kind: str = "I") -> int:
        found: int = struct.unpack_from(self.order + kind, page, at)[0]
        return found


def values(data: bytes) -> Iterator[bytes]:
    """The value of each key but the first of RPM's, which counts the packages.

    Raises `ValueError` where the file is not whole, or of another format.
    """
    try:
        file = _opened(data)
        for at in range(1, len(data) // file.size):
            page = file.page(at)
            if page[25] in _HASH_PAGES:
                yield from _on_page(file, page)
    except (struct.error, IndexError) as error:
        raise ValueError("a Berkeley DB file that breaks off") from error


def _opened(data: bytes) -> _File:
    for order in "<>":
        if struct.unpack_from(f"{order}I", data, 12)[0] == _MAGIC:
            size: int = struct.unpack_from(f"{order}I", data, 20)[0]
            if _LEAST_PAGE <= size <= _LARGEST_PAGE:
                return _File(data, order, size)
    raise ValueError("no Berkeley DB file of hash format")


def _on_page(file: _File, page: bytes) -> Iterator[bytes]:
    """The values on a page: of its items, each second one; the first lies at the page's end."""
    count = file.number(page, 20, "H")
    starts = [file.number(page, _HEADER + 2 * one, "H") for one in range(count)]
    ends = [file.size, *starts]
    for one in range(1, count, 2):
        item = page[starts[one] : ends[one]]
        if item[0] == _OFF_PAGE:
            yield _chained(file, file.number(item, 4), file.number(item, 8))
        elif item[0] == _ON_PAGE and len(item) > 1 + 16:  # the count has 4 bytes, headers have more
            yield item[1:]


def _chained(file: _File, number: int, length: int) -> bytes:
    """A value that is longer than a page, from the pages that it goes over."""
    parts: list[bytes] = []
    if length > len(file.data):
        raise ValueError("a Berkeley DB file with a value that is longer than the file")
    left = length
    while left > 0:
        page = file.page(number)
        used = file.number(page, 22, "H")
        if page[25] != _OVERFLOW_PAGE or not used:
            raise ValueError("a Berkeley DB file whose pages do not belong together")
        parts.append(page[_HEADER : _HEADER + used])
        left -= used
        number = file.number(page, 16)
    return b"".join(parts)[:length]
