"""The members of a tar that somebody else wrote, one at a time, within limits."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator
from typing import IO, Any, cast

from builder.errors import Refused
from builder.pull.limits import LIMITS, Limits
from builder.pull.streams import Plain
from builder.terminal import printable

_EXTENDED = frozenset(
    [
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    ]
)
_KIND, _DEVICE, _PREFIX = 156, slice(329, 345), 345  # places in a header
_USUAL = b"".join((tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE))
# A member, its path below the root, and its content: to be read, or its SHA-256.
Laid = tuple[tarfile.TarInfo, str, IO[bytes] | str]
# What tarfile lets out for what is no tar, or ends too early.
BROKEN = (tarfile.TarError, RecursionError, EOFError, ValueError, OverflowError)


class _Member(tarfile.TarInfo):
    """A header that refuses what would be read into memory whole, and sparse files.

    `tarfile` reads an extended header of any size, and the map of a sparse file, before it tells
    of either. These methods are where it does; they have the same names since Python 2.6.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """What `tarfile` makes of a header; of most, in a third of its time.

        Names of users and numbers of devices are left out: nobody asks here for those.
        """
        is_whole = len(buf) == tarfile.BLOCKSIZE
        if is_whole and buf[_KIND] in _USUAL and not buf[_PREFIX]:
            with contextlib.suppress(ValueError):  # numbers that are written in another way
                return cls()._usual(bytes(buf), encoding, errors)
        return super().frombuf(buf, encoding, errors)

    def _usual(self, header: bytes, encoding: str, errors: str) -> _Member:
        """A header of ustar with a short name and octal numbers: `ValueError` for others.

        https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html#tag_20_92_13_06
        """
        self.chksum = _octal(header[148:156])
        if self.chksum != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise ValueError("another checksum")
        if header[_DEVICE].strip(b"0\0 "):
            raise ValueError("a device's number")
        self.name = header[:100].partition(b"\0")[0].decode(encoding, errors)
        self.mode, self.uid = _octal(header[100:108]), _octal(header[108:116])
        self.gid, self.size = _octal(header[116:124]), _octal(header[124:136])
        self.mtime, self.type = _octal(header[136:148]), header[_KIND : _KIND + 1]
        self.linkname = header[157:257].partition(b"\0")[0].decode(encoding, errors)
        if self.type == tarfile.DIRTYPE:
            self.name = self.name.rstrip("/")
        return self

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


def _octal(field: bytes) -> int:
    """A number of digits that a null byte or spaces may follow."""
    return int(field.partition(b"\0")[0], 8)


def _sparse() -> Refused:
    return Refused("a sparse file: layers of this project have none")


@contextlib.contextmanager
def named(digest: str) -> Iterator[None]:
    """For whatever reads a layer: what is wrong with it is refused, with whose layer it is."""
    try:
        yield
    except Refused as error:
        said = str(error)
        reason = said if digest in said else f"layer {digest[:19]}: {said}"
        raise Refused(reason, hint="nothing of it was kept") from error
    except BROKEN as error:
        reason = f"layer {digest[:19]}: this is no whole tar ({shown(str(error))})"
        raise Refused(reason, hint="nothing of it was kept") from error


def members(stream: Plain, limits: Limits) -> Iterator[tuple[tarfile.TarInfo, str, IO[bytes]]]:
    """Each member with its path below the root, and its content (empty unless it is a file).

    Raises `Refused` for paths that lead elsewhere: one that would have to be normalized is refused.
    Raises one of `BROKEN` for what is no tar, also where a content is read.
    """
    with tarfile.TarFile(fileobj=cast("IO[bytes]", stream), tarinfo=_Member) as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined] # else all that were seen are kept
            if member.size < 0:
                raise Refused(f"{shown(member.name)}: a size below nothing")
            path = checked_path(member.name, limits)
            content = _Content(stream, member.size) if member.isreg() else io.BytesIO()
            yield member, path, cast("IO[bytes]", content)


class _Content:
    """The content of the member that the stream is at: it is read before the next one is."""

    def __init__(self, stream: Plain, size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, size: int) -> memoryview:
        """At most `size` bytes; none at the end."""
        piece = self._stream.some(min(size, self._left))
        if self._left and not piece:
            raise tarfile.ReadError("unexpected end of data")
        self._left -= len(piece)
        return piece


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
