"""Headers of tars: the usual ones are read here, all others by `tarfile`, within limits.

What is read here is what `tarfile` makes of it; it takes a sixth of the time, and a layer has tens
of thousands of them.
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html#tag_20_92_13_06
"""

from __future__ import annotations

import struct
import tarfile
import zlib
from collections.abc import Collection
from typing import IO, Any, cast

from builder.errors import Refused
from builder.pull.limits import LIMITS
from builder.pull.streams import Plain

_EXTENDED = frozenset(
    [
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    ]
)
# name, mode, uid, gid, size, mtime, checksum, kind, link, magic to group, device's numbers, prefix
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s72s16s155s12x")
_USUAL = frozenset([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
_ENCODING, _ERRORS = "utf-8", "surrogateescape"
_OF_PAX = frozenset([tarfile.XHDTYPE])
_TEXTS = {b"path": "name", b"linkpath": "linkname"}  # what pax says otherwise
_UNASKED = frozenset([b"atime", b"ctime", b"mtime", b"uname", b"gname"])
_KIND = 156  # its place
_SHORT = 1 << 14  # of what pax says about a member


class _Member(tarfile.TarInfo):
    """A header that refuses what would be read into memory whole, and sparse files.

    `tarfile` reads an extended header of any size, and the map of a sparse file, before it tells
    of either. These methods are where it does; they have the same names since Python 2.6.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _EXTENDED and not 0 <= self.size <= LIMITS.header:
            raise Refused(f"a tar's extended header has {self.size:,} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse()
        made: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return made

    def _proc_gnusparse_00(self, *_given: Any) -> None:
        raise _sparse()

    def _proc_gnusparse_01(self, *_given: Any) -> None:
        raise _sparse()

    def _proc_gnusparse_10(self, *_given: Any) -> None:
        raise _sparse()


def archive_at(stream: Plain) -> tarfile.TarFile:
    """A tar that begins here; its first member, and what belongs to that, is read."""
    file = cast("IO[bytes]", stream)
    return tarfile.TarFile(fileobj=file, tarinfo=_Member, encoding=_ENCODING, errors=_ERRORS)


def blocks(size: int) -> int:
    """How many bytes of a tar a content takes."""
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def next_usual(stream: Plain) -> tarfile.TarInfo | None:
    """The next member, which is taken from the stream, if its header is a usual one."""
    header = stream.peek(tarfile.BLOCKSIZE)
    if header[_KIND : _KIND + 1] == tarfile.XHDTYPE:
        return _next_with_pax(stream, header)
    if member := usual(header):
        stream.some(tarfile.BLOCKSIZE)
    return member


def _next_with_pax(stream: Plain, header: bytes) -> tarfile.TarInfo | None:
    """A member with a long name, which stands in a pax header before its own."""
    pax = usual(header, _OF_PAX)
    if pax is None or not 0 < pax.size <= _SHORT:
        return None
    size = 2 * tarfile.BLOCKSIZE + blocks(pax.size)
    whole = stream.peek(size)
    if len(whole) < size:
        return None
    block = whole[tarfile.BLOCKSIZE : -tarfile.BLOCKSIZE]
    records, rest = block[: pax.size], block[pax.size :]
    said = _said(records)
    member = usual(whole[-tarfile.BLOCKSIZE :])
    # `tarfile` reads on in what should be empty, and looks for the charset anywhere.
    if said is None or member is None or rest.strip(b"\0") or b"hdrcharset=" in records:
        return None
    for name, value in said.items():
        if name in _TEXTS:
            setattr(member, _TEXTS[name], value.decode(_ENCODING, _ERRORS))
        elif name == b"mtime":
            try:
                member.mtime = float(value)
            except ValueError:
                return None
    if b"path" in said:
        member.name = member.name.rstrip("/")
    stream.some(size)
    return member


def _said(records: bytes) -> dict[bytes, bytes] | None:
    """The records of a pax header, each `LENGTH NAME=VALUE`; None if one is not usual."""
    found, begin = {}, 0
    while begin < len(records):
        length, _, rest = records[begin : begin + 8].partition(b" ")
        if not (rest and length.isdigit() and length[0] != ord("0")):
            return None
        end = begin + int(length)
        name, equals, value = records[begin + len(length) + 1 : end].partition(b"=")
        if end > len(records) or not equals or value[-1:] != b"\n":
            return None
        if name not in _TEXTS and name not in _UNASKED:
            return None
        found[name] = value[:-1]
        begin = end
    return found


def usual(header: bytes, kinds: Collection[bytes] = _USUAL) -> tarfile.TarInfo | None:
    """What `tarfile` makes of a header with a short name and octal numbers.

    None for any other. Names of users and numbers of devices are left out: nobody asks for those.
    """
    if len(header) < tarfile.BLOCKSIZE:
        return None
    name, mode, uid, gid, size, mtime, checksum, kind, link, _, device, prefix = _HEADER.unpack(
        header
    )
    if kind not in kinds or not (_is_zero(device[:8]) and _is_zero(device[8:])):
        return None
    made = _Member.__new__(_Member)
    try:
        made.mode, made.uid, made.gid = _octal(mode), _octal(uid), _octal(gid)
        made.size, made.mtime, made.chksum = _octal(size), _octal(mtime), _octal(checksum)
    except ValueError:  # numbers that are written in another way
        return None
    if made.chksum != _sum(header) - _sum(checksum) + 8 * ord(" "):
        return None
    made.type = kind
    made.name, made.linkname = _text(name), _text(link)
    if prefix[0]:
        made.name = f"{_text(prefix)}/{made.name}"
    if kind == tarfile.DIRTYPE:
        made.name = made.name.rstrip("/")
    return made


def as_member(path: str, kind: bytes, mode: int, size: int, target: str) -> tarfile.TarInfo:
    """A member of which that is known: it has no owner, and no time."""
    made = _Member.__new__(_Member)
    made.name, made.type, made.mode, made.size, made.linkname = path, kind, mode, size, target
    made.uid = made.gid = made.mtime = 0
    return made


def _is_zero(field: bytes) -> bool:
    """Whether a number is none, or is zero."""
    return not field.rstrip(b"\0 ").strip(b"0")


def _octal(field: bytes) -> int:
    """A number of digits that null bytes or spaces may follow."""
    return int(field.rstrip(b"\0 "), 8)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(_ENCODING, _ERRORS)


def _sum(some: bytes) -> int:
    """The sum of at most 512 bytes: 127 times as many are less than Adler's modulus."""
    return (zlib.adler32(some) & 0xFFFF) - 1 if some.isascii() else sum(some)


def _sparse() -> Refused:
    return Refused("a sparse file: layers of this project have none")
