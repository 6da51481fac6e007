"""Gzipped tar files: written member by member, deflated on all cores, in parts that can be reused.

A part is deflated by itself and ends at a byte, so parts follow each other in any order (RFC 1951).
They are cut by the bytes that are written, not by time: the same writes give the same bytes,
whatever the number of threads.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from builder.model.digests import HashedWriter

APART = 1 << 16  # files from this size on are gzipped as parts of their own
# Level 6 takes 1.5 times the processor time for files 1 % smaller (docs/performance.md).
LEVEL = 5
PART = 1 << 20  # plain bytes of a part at most
_BLOCK = tarfile.BLOCKSIZE
_WAITING = 4  # parts for each thread that may wait to be written: bounds the memory
# No time, no name; "unknown" for the system, as https://www.rfc-editor.org/rfc/rfc1952 has it
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST_BLOCK = b"\x03\x00"


class GzippedTar:
    """A tar file that is gzipped as it is written; `plain` receives it uncompressed."""

    def __init__(self, gzip: Gzip, plain: HashedWriter | None = None) -> None:
        self.size = 0  # plain bytes until now
        self._gzip, self._plain = gzip, plain

    def add(self, member: tarfile.TarInfo, data: IO[bytes] | None = None) -> None:
        """Add a member, with `member.size` bytes of content for a regular file.

        The parts of a large file are noted in the gzip file's `places`, by the content's offset in
        the tar.
        """
        self._write(_header(member))
        if data is None:
            return
        key = self.size if member.size >= APART else None
        for chunk in _chunks(member, data):
            self._write(chunk, key)
        self._pad(member.size)

    def add_again(
        self, member: tarfile.TarInfo, data: IO[bytes], places: Sequence[PartPlace], file: IO[bytes]
    ) -> None:
        """Add a large file whose parts lie in another gzip file; `plain` does not receive it."""
        self._write(_header(member))
        for place, chunk in zip(places, _chunks(member, data), strict=True):
            self.size += len(chunk)
            self._gzip.write_again(chunk, place, file)
        self._pad(member.size)

    def close(self) -> None:
        """Write the two empty blocks that end a tar, and the end of the gzip file."""
        self._write(bytes(2 * _BLOCK))
        self._gzip.close()

    def _pad(self, size: int) -> None:
        self._write(bytes(-size % _BLOCK))

    def _write(self, data: bytes, key: int | None = None) -> None:
        self.size += len(data)
        if self._plain is not None:
            self._plain.write(data)
        if key is None:
            self._gzip.write(data)
        else:
            self._gzip.write_apart(data, key)


def _header(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _chunks(member: tarfile.TarInfo, data: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a file, `PART` bytes at a time."""
    remaining = member.size
    while remaining:
        chunk = data.read(min(remaining, PART))
        if not chunk:
            raise EOFError(f"/{member.name}: {remaining} bytes are missing")
        remaining -= len(chunk)
        yield chunk


@dataclass(frozen=True, slots=True)
class PartPlace:
    """The place of a part in a gzip file."""

    offset: int
    length: int


@contextmanager
def threads() -> Iterator[ThreadPoolExecutor]:
    """Start one thread for each core that this process may use."""
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        yield pool


class Gzip:
    """Writes a gzip file; `digest` is its SHA-256 and `size` its bytes, once it is closed.

    `places` has the places of parts, by the key under which they were written.
    """

    def __init__(self, sink: IO[bytes], pool: ThreadPoolExecutor) -> None:
        self.size = 0
        self.places: dict[int, list[PartPlace]] = {}
        self._sink, self._pool = sink, pool
        self._hash = hashlib.sha256()
        self._plain_size, self._crc = 0, 0
        self._gathered = bytearray()
        self._waiting: deque[tuple[Future[bytes], int | None]] = deque()
        self._limit = _WAITING * pool._max_workers
        self._put(_HEADER)

    @property
    def digest(self) -> str:
        """The SHA-256 of the file, in hexadecimal."""
        return self._hash.hexdigest()

    def write(self, data: bytes) -> None:
        """Write bytes, which share parts with the bytes before and after them."""
        self._count(data)
        self._gathered += data
        while len(self._gathered) >= PART:
            self._submit(None, _deflated, bytes(self._gathered[:PART]))
            del self._gathered[:PART]

    def write_apart(self, data: bytes, key: int) -> None:
        """Write at most `PART` bytes as a part of their own, and note its place under a key."""
        self._cut()
        self._count(data)
        self._submit(key, _deflated, data)

    def write_again(self, data: bytes, place: PartPlace, file: IO[bytes]) -> None:
        """Write bytes that are a part of another file, without deflating them again."""
        self._cut()
        self._count(data)
        self._submit(None, os.pread, file.fileno(), place.length, place.offset)

    def close(self) -> None:
        """Write the parts that wait, and the file's end."""
        self._cut()
        while self._waiting:
            self._settle()
        numbers = (self._crc, self._plain_size & 0xFFFFFFFF)
        self._put(_LAST_BLOCK + b"".join(number.to_bytes(4, "little") for number in numbers))

    def _count(self, data: bytes) -> None:
        self._plain_size += len(data)
        self._crc = zlib.crc32(data, self._crc)

    def _cut(self) -> None:
        if self._gathered:
            self._submit(None, _deflated, bytes(self._gathered))
            self._gathered.clear()

    def _submit(self, key: int | None, work: Callable[..., bytes], *arguments: object) -> None:
        self._waiting.append((self._pool.submit(work, *arguments), key))
        while len(self._waiting) > self._limit:
            self._settle()

    def _settle(self) -> None:
        """Write the part that comes next."""
        future, key = self._waiting.popleft()
        deflated = future.result()
        if key is not None:
            self.places.setdefault(key, []).append(PartPlace(self.size, len(deflated)))
        self._put(deflated)

    def _put(self, data: bytes) -> None:
        self._hash.update(data)
        self.size += len(data)
        self._sink.write(data)


def _deflated(data: bytes) -> bytes:
    deflater = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflater.compress(data) + deflater.flush(zlib.Z_FULL_FLUSH)


PAX = "SCHILY.xattr."  # the prefix of an attribute's name in a pax header
Attributes = tuple[tuple[str, str], ...]  # names and values, sorted
# Attributes of the build host: labels of its policy, records of its storage drivers, and owners
# that an ordinary user's Apptainer could not set.
_OF_HOST = (
    "security.selinux",
    "trusted.overlay.",  # https://docs.kernel.org/filesystems/overlayfs.html
    "user.overlay.",  # the same, of ordinary users
    "user.fuseoverlayfs.",
    "user.containers.",
    "user.rootlesscontainers",
)
_OF_ROOT = ("security.", "trusted.")


def attributes_of(member: tarfile.TarInfo) -> Attributes:
    """Return the extended attributes of a tar's member, without those of the build host."""
    headers = sorted(member.pax_headers.items())
    pairs = ((name.removeprefix(PAX), text) for name, text in headers if name.startswith(PAX))
    return tuple(pair for pair in pairs if not pair[0].startswith(_OF_HOST))


def users_attributes(member: tarfile.TarInfo) -> Attributes:
    """Return the attributes that every user may set; every format keeps them."""
    return tuple(one for one in attributes_of(member) if not one[0].startswith(_OF_ROOT))


def roots_attributes(member: tarfile.TarInfo) -> Attributes:
    """Return the attributes that only root may set, such as a program's capabilities."""
    return tuple(one for one in attributes_of(member) if one[0].startswith(_OF_ROOT))


def as_headers(attributes: Attributes) -> dict[str, str]:
    """Return attributes as a member's pax headers."""
    return {PAX + name: text for name, text in attributes}
