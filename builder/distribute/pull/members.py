"""The members of a tar that somebody else wrote, one at a time, within limits."""

from __future__ import annotations

import contextlib
import hashlib
import math
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from builder.artifacts.tars import PAX, as_headers
from builder.distribute.pull.streams import LIMITS, Limits, Plain
from builder.model.errors import Refused
from builder.system.terminal import printable

_NOTHING = memoryview(b"")
# A member, its path below the root, and its content: to be read, or its SHA-256.
Laid = tuple[tarfile.TarInfo, str, IO[bytes] | str]
# What tarfile lets out for what is no tar, or ends too early.
BROKEN = (tarfile.TarError, RecursionError, EOFError, ValueError, OverflowError)


@contextlib.contextmanager
def named(digest: str) -> Iterator[None]:
    """For whatever reads a layer: what is wrong with it is refused, with whose layer it is."""
    try:
        yield
    except Refused as error:
        text = str(error)
        reason = text if digest in text else f"layer {digest[:19]}: {text}"
        raise Refused(reason, hint="nothing of it was kept") from error
    except BROKEN as error:
        reason = f"layer {digest[:19]}: this is no whole tar ({shown(str(error))})"
        raise Refused(reason, hint="nothing of it was kept") from error


def members(stream: Plain, limits: Limits) -> Iterator[tuple[tarfile.TarInfo, str, Content]]:
    """Each member with its path below the root, and its content (empty unless it is a file).

    Raises `Refused` for paths that lead elsewhere: one that would have to be normalized is refused.
    Raises one of `BROKEN` for what is no tar, also where a content is read.
    """
    headers = Headers(stream)
    while (member := headers.next()) is not None:
        after = stream.tell() + (blocks(member.size) if member.isreg() else 0)
        if member.size < 0:
            raise Refused(f"{shown(member.name)}: a size below nothing")
        path = checked_path(member.name, limits)
        content = Content(stream, member.size if member.isreg() else 0)
        yield member, path, content
        stream.seek(after)
        if stream.tell() < after:
            raise tarfile.ReadError("unexpected end of data")


class Content:
    """The content of the member that the stream is at: it is read before the next one is."""

    def __init__(self, stream: Plain, size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, size: int) -> memoryview:
        """At most `size` bytes; none at the end."""
        if not self._left:
            return _NOTHING
        piece = self._stream.read_ready(min(size, self._left))
        if not piece:
            raise tarfile.ReadError("unexpected end of data")
        self._left -= len(piece)
        return piece

    def sha256(self, check: Callable[[], object]) -> str:
        """The SHA-256 of all that is left, in hexadecimal; `check` is called between pieces."""
        digest = hashlib.sha256(self.read(self._left))
        while self._left:
            check()
            digest.update(self.read(self._left))
        return digest.hexdigest()


def shown(path: str) -> str:
    """A path that somebody else chose, as it can be printed: a name may try to steer a terminal."""
    return printable(path, most=200)


def checked_path(name: str, limits: Limits) -> str:
    """A member's name as a path below the root, empty for the root; raises `Refused`."""
    parts = [part for part in name.rstrip("/").split("/") if part not in {"", "."}]
    if wrong := _wrong_with(name, parts, limits):
        raise Refused(f'"{shown(name)}": {wrong}')
    return "/".join(parts)


def _wrong_with(name: str, parts: list[str], limits: Limits) -> str:
    if name.startswith("/"):
        return "an absolute path in a layer"
    if ".." in parts:
        return "a path with .. in a layer"
    if "\0" in name:
        return "a path with a null byte in a layer"
    if len(name.encode(errors="surrogateescape")) > limits.name:  # few are
        sizes = [len(part.encode(errors="surrogateescape")) for part in parts]
        if max(sizes, default=0) > limits.name or sum(sizes) + len(sizes) > limits.path:
            return "a path that is too long"
    if len(parts) > limits.depth:
        return f"a path of {len(parts)} levels, at most {limits.depth} are read"
    return ""


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
            self._stream.read_ready(tarfile.BLOCKSIZE)
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
        while piece := self._stream.read_ready(1 << 18):
            if bytes(piece).strip(b"\0"):
                raise Refused("something stands after the end of the tar")


@dataclass(slots=True)
class _Extended:
    """Extended headers before a member: the `kinds` of them, and texts by name."""

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
    """True if the pax header of a name counts here."""
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
        seconds = float(text)
    except ValueError:
        return 0
    if not math.isfinite(seconds):
        raise Refused("a time in a tar's extended header is none")
    return seconds


def blocks(size: int) -> int:
    """Return the bytes that a content takes in a tar."""
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _member(header: bytes, *, is_first: bool) -> tarfile.TarInfo:
    """Parse a header with `tarfile`; raises `Refused` for one that no sound layer has."""
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
