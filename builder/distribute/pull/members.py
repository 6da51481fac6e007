"""The members of a tar that somebody else wrote, one at a time, within limits."""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
from collections.abc import Callable, Iterator
from typing import IO

from builder.distribute.pull.headers import Headers, blocks
from builder.distribute.pull.limits import Limits
from builder.distribute.pull.streams import Plain
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
