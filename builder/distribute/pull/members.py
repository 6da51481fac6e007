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
    """Yield each member with its path below the root, and its content (empty unless it is a file).

    Headers are read here, in a time and a memory in proportion to their length: for an extended
    header `tarfile` may take a time that grows with the square of its length, and it keeps a chain
    of them in memory (https://github.com/python/cpython/issues/121285). The result is that of
    `tarfile`. Raises `Refused` for what no sound layer has, also for a path that would have to be
    normalized, and one of `BROKEN` for what is no tar, also where a content is read.
    """
    extended, is_first = _Extended(), True
    while header := stream.read(tarfile.BLOCKSIZE):
        if header == _END:
            _check_end(stream)
            is_first = False
            break
        member = _member(header, is_first=is_first)
        is_first = False
        if member.type in _EXTENDED:
            extended.add(member.type, _extended_content(stream, member.size))
            continue
        member, extended = extended.applied(member), _Extended()
        if member.size < 0:
            raise Refused(f"{shown(member.name)}: a size below nothing")
        size = member.size if member.isreg() else 0
        end = stream.tell() + _padded(size)
        yield member, checked_path(member.name, limits), Content(stream, size)
        stream.skip(end - stream.tell())
        if stream.tell() < end:
            raise tarfile.ReadError("unexpected end of data")
    if extended.kinds or is_first:
        raise tarfile.ReadError("unexpected end of data")


def _check_end(stream: Plain) -> None:
    """Refuse a second tar, or anything else, that one reader takes and another does not see."""
    while piece := stream.read_ready(1 << 18):
        if bytes(piece).strip(b"\0"):
            raise Refused("something stands after the end of the tar")


def _extended_content(stream: Plain, size: int) -> bytes:
    if not 0 <= size <= LIMITS.header:
        raise Refused(f"a tar's extended header has {size:,} bytes")
    content = stream.read(_padded(size))
    if len(content) < _padded(size):
        raise tarfile.ReadError("unexpected end of data")
    if content[size:].strip(b"\0"):  # `tarfile` reads on there
        raise Refused("something stands after a tar's extended header")
    return content[:size]


def _padded(size: int) -> int:
    """Return the bytes that a content takes in a tar."""
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


class Content:
    """The content of the member that the stream is at: it is read before the next one is."""

    def __init__(self, stream: Plain, size: int) -> None:
        self._stream, self._remaining = stream, size

    def read(self, size: int) -> memoryview:
        """At most `size` bytes; none at the end."""
        if not self._remaining:
            return memoryview(b"")
        piece = self._stream.read_ready(min(size, self._remaining))
        if not piece:
            raise tarfile.ReadError("unexpected end of data")
        self._remaining -= len(piece)
        return piece

    def sha256(self, check: Callable[[], object]) -> str:
        """The SHA-256 of the remaining bytes, in hexadecimal; `check` is called between pieces."""
        digest = hashlib.sha256(self.read(self._remaining))
        while self._remaining:
            check()
            digest.update(self.read(self._remaining))
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
_DIGITS = 20  # of a number in a pax header


@dataclass(slots=True)
class _Extended:
    """Extended headers before a member: the `kinds` of them, and texts by name."""

    kinds: set[bytes] = field(default_factory=set)
    texts: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, kind: bytes, content: bytes) -> None:
        """Take what one more header says; raises `Refused` where two could be understood."""
        if kind == tarfile.XGLTYPE:
            if any(_is_read(name) for name, _ in _records(content)):
                raise Refused("a header of a tar says something of all its members")
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
