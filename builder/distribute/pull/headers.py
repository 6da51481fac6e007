"""Headers of tars: each is read here, in a time and a memory in proportion to its length.

What is read is what `tarfile` makes of it; what no sound layer has is refused. For an extended
header `tarfile` itself may take a time that grows with the square of its length, and it keeps a
chain of them in memory: https://github.com/python/cpython/issues/121285
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html#tag_20_92_13_06
"""

from __future__ import annotations

import math
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from builder.artifacts.tars import PAX, as_headers
from builder.distribute.pull.limits import LIMITS
from builder.distribute.pull.streams import Plain
from builder.model.errors import Refused

_PAX = frozenset([tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE])
_GNU = {tarfile.GNUTYPE_LONGNAME: b"path", tarfile.GNUTYPE_LONGLINK: b"linkpath"}
_EXTENDED = _PAX | _GNU.keys() | {tarfile.XGLTYPE}
_KNOWN = {
    *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE),
    *(tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE),
}
_ENCODING, _ERRORS = "utf-8", "surrogateescape"
_NUMBERS = {b"size": "size", b"uid": "uid", b"gid": "gid"}
_READ = frozenset([b"path", b"linkpath", b"mtime", *_NUMBERS])  # of what pax says of a member
_ATTRIBUTE = PAX.encode()
_SPARSE = b"GNU.sparse."
_END = bytes(tarfile.BLOCKSIZE)
_KIND = slice(156, 157)  # its place
_DIGITS = 20  # of a number in a pax header


class Headers:
    """The headers of a tar, one after the other."""

    def __init__(self, stream: Plain) -> None:
        self._stream = stream
        self._is_first = True

    def next(self) -> tarfile.TarInfo | None:
        """The next member, whose content is read or passed over by then; None after the last one.

        Raises `Refused` for what is no header, and for anything but zeros after the end's mark.
        """
        extended = _Extended()
        while header := self._stream.peek(tarfile.BLOCKSIZE):
            if header == _END:
                self._check_end()
                self._is_first = False
                break
            member = _member(header, is_first=self._is_first)
            self._stream.some(tarfile.BLOCKSIZE)
            self._is_first = False
            if member.type not in _EXTENDED:
                return extended.applied(member)
            self._extend(extended, member)
        if extended.kinds or self._is_first:
            raise tarfile.ReadError("unexpected end of data")
        return None

    def _extend(self, extended: _Extended, header: tarfile.TarInfo) -> None:
        if not 0 <= header.size <= LIMITS.header:
            raise Refused(f"a tar's extended header has {header.size:,} bytes")
        content = self._stream.read(blocks(header.size))
        if len(content) < blocks(header.size):
            raise tarfile.ReadError("unexpected end of data")
        if content[header.size :].strip(b"\0"):  # `tarfile` reads on there
            raise Refused("something stands after a tar's extended header")
        extended.add(header.type, content[: header.size])

    def _check_end(self) -> None:
        """Refuse a second tar, or anything else, that one reader takes and another does not see."""
        while piece := self._stream.some(1 << 18):
            if bytes(piece).strip(b"\0"):
                raise Refused("something stands after the end of the tar")


@dataclass(slots=True)
class _Extended:
    """What the extended headers before a member say of it: `kinds` of them, and texts by name."""

    kinds: set[bytes] = field(default_factory=set)
    texts: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, kind: bytes, content: bytes) -> None:
        """Take what one more header says; raises `Refused` where two could be understood."""
        if kind == tarfile.XGLTYPE:
            _check_global(content)
            return
        if kind in self.kinds or (self.kinds and kind not in _GNU) or self.kinds & _PAX:
            raise Refused("two extended headers say something of one member")
        self.kinds.add(kind)
        if kind in _GNU:
            self.texts[_GNU[kind]] = content.partition(b"\0")[0]
        else:
            self.texts = {name: text for name, text in _records(content) if _is_read(name)}

    def applied(self, member: tarfile.TarInfo) -> tarfile.TarInfo:
        """The member as the extended headers have it."""
        for name, text in self.texts.items():
            if name in _NUMBERS:
                setattr(member, _NUMBERS[name], _number(text))
            elif name == b"mtime":
                member.mtime = _seconds(text)
            elif name.startswith(_ATTRIBUTE):
                attribute = {name.decode(_ENCODING, _ERRORS): text.decode(_ENCODING, _ERRORS)}
                member.pax_headers = {**member.pax_headers, **attribute}
            elif name == b"path":
                named = text.decode(_ENCODING, _ERRORS)
                member.name = named.rstrip("/") if self.kinds & _PAX or member.isdir() else named
            else:
                member.linkname = text.decode(_ENCODING, _ERRORS)
        return member


def _is_read(name: bytes) -> bool:
    """Whether what a pax header says under a name counts here."""
    return name in _READ or name.startswith(_ATTRIBUTE)


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The records of a pax header, each `LENGTH NAME=VALUE` with an end of line.

    Raises `Refused` unless the header consists of them, and for sparse files.
    """
    begin = 0
    while begin < len(content):
        length, _, rest = content[begin : begin + 8].partition(b" ")
        if not (rest and length.isdigit() and length[0] != ord("0")):
            raise Refused("a tar's extended header is none")
        end = begin + int(length)
        name, equals, value = content[begin + len(length) + 1 : end].partition(b"=")
        if end > len(content) or not (name and equals) or value[-1:] != b"\n":
            raise Refused("a tar's extended header is none")
        if name.startswith(_SPARSE):
            raise _sparse()
        yield name, value[:-1]
        begin = end


def _check_global(content: bytes) -> None:
    """Refuse a header about all members that says anything which counts here."""
    if any(_is_read(name) for name, _ in _records(content)):
        raise Refused("a header of a tar says something of all its members")


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > _DIGITS:
        raise Refused("a number in a tar's extended header is none")
    return int(text)


def _seconds(text: bytes) -> float:
    try:
        found = float(text)
    except ValueError:
        return 0
    if not math.isfinite(found):
        raise Refused("a time in a tar's extended header is none")
    return found


def blocks(size: int) -> int:
    """How many bytes of a tar a content takes."""
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _member(header: bytes, *, is_first: bool) -> tarfile.TarInfo:
    """What `tarfile` makes of a header; raises `Refused` for what no sound layer has."""
    try:
        member = tarfile.TarInfo.frombuf(header, _ENCODING, _ERRORS)
    except tarfile.HeaderError as error:
        if is_first:
            raise tarfile.ReadError(str(error)) from error
        raise Refused(f"no header where one has to be: {error}") from error
    if member.type == tarfile.GNUTYPE_SPARSE:
        raise _sparse()
    if member.type not in _KNOWN | _EXTENDED:
        raise Refused("a member of a kind that is not read here")
    if member.isdir():
        member.name = member.name.rstrip("/")  # as `tarfile` itself does after `frombuf`
    return member


def as_member(
    path: str, kind: bytes, mode: int, size: int, target: str, attributes: Sequence[str] = ()
) -> tarfile.TarInfo:
    """A member of which that is known: it has no owner, and no time.

    `attributes` are names of extended attributes, each with its value after it.
    """
    member = tarfile.TarInfo(path)
    member.type, member.mode, member.size, member.linkname = kind, mode, size, target
    pairs = zip(attributes[::2], attributes[1::2], strict=True)
    member.pax_headers = as_headers(tuple(pairs))
    return member


def _sparse() -> Refused:
    return Refused("a sparse file: layers of this project have none")
