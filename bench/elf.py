"""What can be said of a program or library without running it: its code, its symbols, its needs.

64-bit little-endian ELF, which all architectures of the builder have:
https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = b"\x7fELF\x02\x01"
# name, type, flags, address, offset, size, link, info, alignment, size of an entry
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")  # name, binding and type, visibility, section, value, size
_DYNAMIC = struct.Struct("<qQ")  # tag, value
_LOADED, _NO_BITS, _LINKS, _SYMBOLS = 2, 8, 6, 11
_NAMED = {1: "needs", 14: "is called", 15: "looks in", 29: "looks in"}
_BUILD_ID = ".note.gnu.build-id"  # a hash over all of the file, `.comment` included


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One section. `data` is empty where the file has none of it, as of `.bss`."""

    name: str
    kind: int
    flags: int
    size: int
    link: int
    data: bytes


def is_elf(data: bytes) -> bool:
    """Whether these are the bytes of such a file."""
    return data.startswith(_MAGIC)


def sections(data: bytes) -> list[Section]:
    """All sections of a file, in its order."""
    [start] = struct.unpack_from("<Q", data, 0x28)
    width, count, names = struct.unpack_from("<HHH", data, 0x3A)
    rows = [_SECTION.unpack_from(data, start + number * width) for number in range(count)]
    table = data[rows[names][4] :] if rows else b""
    return [
        Section(
            name=_text(table, row[0]),
            kind=row[1],
            flags=row[2],
            size=row[5],
            link=row[6],
            data=b"" if row[1] == _NO_BITS else data[row[4] : row[4] + row[5]],
        )
        for row in rows
    ]


def code_digest(data: bytes) -> str:
    """A SHA-256 over all that is loaded: code and data, but neither `.comment` nor debug notes."""
    digest = hashlib.sha256()
    for one in sections(data):
        if one.flags & _LOADED and one.name != _BUILD_ID:
            digest.update(f"{one.name} {one.kind} {one.flags} {one.size}\n".encode())
            digest.update(one.data)
    return digest.hexdigest()


def interface(data: bytes) -> Iterator[str]:
    """A line for each dynamic symbol that it has or wants, and each library that it needs."""
    found = sections(data)
    for one in found:
        if one.kind == _SYMBOLS:
            names = found[one.link].data
            for name, info, _, section, _, size in _SYMBOL.iter_unpack(one.data):
                has = f"has, {size} bytes" if section else "wants"
                if name:
                    yield f"{_text(names, name)} ({has}, kind {info:#x})"
        elif one.kind == _LINKS:
            names = found[one.link].data
            for tag, value in _DYNAMIC.iter_unpack(one.data):
                if tag in _NAMED:
                    yield f"{_NAMED[tag]} {_text(names, value)}"


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode(errors="replace")
