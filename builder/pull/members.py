"""The members of a tar that somebody else wrote, one at a time, within limits."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import IO, Any

from builder.errors import Refused
from builder.pull.limits import LIMITS, Limits
from builder.terminal import printable

_CHUNK = 1 << 16
_EXTENDED = frozenset(
    [
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    ]
)
# What tarfile lets out for what is no tar, or ends too early.
BROKEN = (tarfile.TarError, RecursionError, EOFError, ValueError, OverflowError)


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


def _sparse() -> Refused:
    return Refused("a sparse file: layers of this project have none")


def members(stream: IO[bytes], limits: Limits) -> Iterator[tuple[tarfile.TarInfo, str, IO[bytes]]]:
    """Each member with its path below the root, and its content (empty unless it is a file).

    Raises `Refused` for paths that lead elsewhere: one that would have to be normalized is refused.
    Raises one of `BROKEN` for what is no tar, also where a content is read.
    """
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK, tarinfo=_Member) as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined] # else all that were seen are kept
            path = checked_path(member.name, limits)
            yield member, path, _content(archive, member)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    if member.size < 0:
        raise Refused(f"{shown(member.name)}: a size below nothing")
    found = archive.extractfile(member) if member.isreg() else None
    return found or io.BytesIO()


def shown(path: str) -> str:
    """A path that somebody else chose, as it can be printed: a name may try to steer a terminal."""
    return printable(path, most=200)


def checked_path(name: str, limits: Limits) -> str:
    """A member's name as a path below the root, empty for the root; raises `Refused`."""
    said = f'"{shown(name)}"'
    if name.startswith("/"):
        raise Refused(f"{said}: an absolute path in a layer")
    parts = [part for part in name.rstrip("/").split("/") if part not in {"", "."}]
    if ".." in parts:
        raise Refused(f"{said}: a path with .. in a layer")
    if "\0" in name:
        raise Refused(f"{said}: a path with a null byte in a layer")
    sizes = [len(part.encode(errors="surrogateescape")) for part in parts]
    if max(sizes, default=0) > limits.name or sum(sizes) + len(sizes) > limits.path:
        raise Refused(f"{said}: a path that is too long")
    if len(parts) > limits.depth:
        raise Refused(f"{said}: a path of {len(parts)} levels, at most {limits.depth} are read")
    return "/".join(parts)
