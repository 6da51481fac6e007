"""Read the members of an untrusted tar one at a time, within limits."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from builder.artifacts.tars import PAX
from builder.distribute.pull.streams import LIMITS, PIECE, PlainLayer
from builder.model.errors import Refused
from builder.system.terminal import printable

Content = Iterable[bytes | memoryview]  # of a member; to be read before the next member
Laid = tuple[tarfile.TarInfo, str, Content]  # a member, its path below the root, its content
# Exceptions of tarfile for a file that is not a tar, or is truncated.
BROKEN = (tarfile.TarError, RecursionError, EOFError, ValueError, OverflowError)


@contextlib.contextmanager
def named(digest: str) -> Iterator[None]:
    """Turn errors while a layer is read into `Refused`, with the layer's digest."""
    try:
        yield
    except Refused as error:
        text = str(error)
        reason = text if digest in text else f"layer {digest[:19]}: {text}"
        raise Refused(reason, hint="all of its data was removed") from error
    except BROKEN as error:
        reason = f"layer {digest[:19]}: the tar is incomplete or invalid ({shown(str(error))})"
        raise Refused(reason, hint="all of its data was removed") from error


def members(stream: PlainLayer) -> Iterator[Laid]:
    """Yield each member with its path below the root, and its content (empty unless it is a file).

    Headers are parsed here, in linear time and memory. For an extended header, the time of
    `tarfile` may grow with the square of its length, and it keeps chains of such headers in memory
    (https://github.com/python/cpython/issues/121285). The result is that of `tarfile`. Raises
    `Refused` for members that no valid layer has, and for paths that would have to be normalized;
    one of `BROKEN` if the file is not a tar, also while a member's content is read.
    """
    extended, is_first = _Extended(), True
    number = 0
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
            raise Refused(f"{shown(member.name)}: a negative size")
        number += 1
        LIMITS.check_entries(number)
        size = member.size if member.isreg() else 0
        content = stream.pieces(size)
        yield member, checked_path(member.name), content
        for _ in itertools.chain(content, stream.pieces(-size % tarfile.BLOCKSIZE)):
            pass  # skip the unread content and the padding
    if extended.kinds or is_first:
        raise tarfile.ReadError("unexpected end of data")


def sha256_of_content(content: Content) -> str:
    """Return the SHA-256 of a member's content, in hexadecimal."""
    digest = hashlib.sha256()
    for piece in content:
        digest.update(piece)
    return digest.hexdigest()


def _check_end(stream: PlainLayer) -> None:
    """Refuse data after the end marker: some tar readers read a second tar there."""
    while piece := stream.read_ready(PIECE):
        if bytes(piece).strip(b"\0"):
            raise Refused("data after the end of the tar")


def _extended_content(stream: PlainLayer, size: int) -> bytes:
    if not 0 <= size <= LIMITS.header:
        raise Refused(f"an extended tar header has {size:,} bytes, which is too large")
    content = b"".join(stream.pieces(size))
    if b"".join(stream.pieces(-size % tarfile.BLOCKSIZE)).strip(b"\0"):  # `tarfile` reads padding
        raise Refused("data after an extended tar header")
    return content


def shown(path: str) -> str:
    """Return an untrusted path in printable form: it may contain terminal sequences."""
    return printable(path, most=200)


def checked_path(name: str) -> str:
    """Return a member's name as a path below the root, empty for the root; raises `Refused`."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if fault := _fault_of_path(name, parts):
        raise Refused(f'"{shown(name)}": {fault}')
    return "/".join(parts)


def _fault_of_path(name: str, parts: list[str]) -> str:
    if name.startswith("/"):
        return "an absolute path in a layer"
    if ".." in parts:
        return "a path with .. in a layer"
    if "\0" in name:
        return "a path with a null byte in a layer"
    if len(name.encode(errors="surrogateescape")) > LIMITS.name:  # few are
        sizes = [len(part.encode(errors="surrogateescape")) for part in parts]
        if max(sizes, default=0) > LIMITS.name or sum(sizes) + len(sizes) > LIMITS.path:
            return "a path that is too long"
    if len(parts) > LIMITS.depth:
        return f"a path with {len(parts)} levels; the limit is {LIMITS.depth}"
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
_READ = frozenset([b"path", b"linkpath", b"mtime", *_NUMBERS])  # the pax keys that are applied
_ATTRIBUTE = PAX.encode()
_SPARSE = b"GNU.sparse."
_END = bytes(tarfile.BLOCKSIZE)
_DIGITS = 20  # of a number in a pax header


@dataclass(slots=True)
class _Extended:
    """Extended headers before a member: their `kinds`, and their values by key."""

    kinds: set[bytes] = field(default_factory=set)
    texts: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, kind: bytes, content: bytes) -> None:
        """Add a header; raises `Refused` if readers could interpret the headers differently."""
        if kind == tarfile.XGLTYPE:
            if any(_is_read(name) for name, _ in _records(content)):
                raise Refused("the tar has a global header that changes its members")
            return
        if kind in self.kinds or (self.kinds and kind not in _GNU) or self.kinds & _PAX:
            raise Refused("two extended headers for one member")
        self.kinds.add(kind)
        if kind in _GNU:
            self.texts[_GNU[kind]] = content.partition(b"\0")[0]
        else:
            self.texts = {name: text for name, text in _records(content) if _is_read(name)}

    def applied(self, member: tarfile.TarInfo) -> tarfile.TarInfo:
        """Return the member with the values of the extended headers."""
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
    return name in _READ or name.startswith(_ATTRIBUTE)


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a pax header, each `LENGTH NAME=VALUE` with an end of line.

    Raises `Refused` if the header contains anything else, and for sparse files.
    """
    begin = 0
    while begin < len(content):
        length, _, rest = content[begin : begin + 9].partition(b" ")
        if not (rest and length.isdigit() and length[0] != ord("0")):
            raise Refused("invalid extended tar header")
        end = begin + int(length)
        name, equals, value = content[begin + len(length) + 1 : end].partition(b"=")
        if end > len(content) or not (name and equals) or value[-1:] != b"\n":
            raise Refused("invalid extended tar header")
        if name.startswith(_SPARSE):
            raise _sparse()
        yield name, value[:-1]
        begin = end


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > _DIGITS:
        raise Refused("invalid number in an extended tar header")
    return int(text)


def _seconds(text: bytes) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return 0
    if not math.isfinite(seconds):
        raise Refused("invalid time in an extended tar header")
    return seconds


def _member(header: bytes, *, is_first: bool) -> tarfile.TarInfo:
    """Parse a header with `tarfile`; raises `Refused` for a header that no valid layer has."""
    try:
        member = tarfile.TarInfo.frombuf(header, _ENCODING, _ERRORS)
    except tarfile.HeaderError as error:
        if is_first:
            raise tarfile.ReadError(str(error)) from error
        raise Refused(f"invalid tar header: {error}") from error
    if member.type == tarfile.GNUTYPE_SPARSE:
        raise _sparse()
    if member.type not in _KNOWN | _EXTENDED:
        raise Refused("a member of an unsupported kind")
    if member.isdir():
        member.name = member.name.rstrip("/")  # as `tarfile` itself does after `frombuf`
    return member


def _sparse() -> Refused:
    return Refused("sparse files are not supported")
