"""Tar files written member by member, with content from anywhere."""

from __future__ import annotations

import functools
import hashlib
import os
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Protocol

APART = 1 << 16  # files from this size on are gzipped as parts of their own
_BLOCK = tarfile.BLOCKSIZE


class Sink(Protocol):
    """What sees the bytes of a tar before they are compressed."""

    def write(self, data: bytes, /) -> object:
        """Take the next bytes."""


class GzippedTar:
    """A tar file that is gzipped as it is written; `plain` sees it uncompressed."""

    def __init__(self, gzip: Gzip, plain: Sink | None = None) -> None:
        self.size = 0  # plain bytes until now
        self._gzip, self._plain = gzip, plain

    def add(self, member: tarfile.TarInfo, data: IO[bytes] | None = None) -> None:
        """Add a member, with `member.size` bytes of content for a regular file.

        The parts of a large file are kept among the gzip file's `places`, by the content's offset
        in the tar.
        """
        self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if data is None:
            return
        key = self.size if member.size >= APART else None
        left = member.size
        while left:
            chunk = data.read(min(left, PART))
            if not chunk:
                raise EOFError(f"/{member.name}: {left} bytes are missing")
            left -= len(chunk)
            self._write(chunk, key)
        self._pad(member.size)

    def add_again(self, member: tarfile.TarInfo, places: Sequence[Place], file: IO[bytes]) -> None:
        """Add a large file whose parts lie in another gzip file."""
        assert self._plain is None
        self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self._gzip.write_again(places, file)
        self.size += member.size
        self._pad(member.size)

    def close(self) -> None:
        """Write the two empty blocks that end a tar, and the end of the gzip file."""
        self._write(bytes(2 * _BLOCK))
        self._gzip.close()

    def _pad(self, size: int) -> None:
        self._write(bytes(-size % _BLOCK))

    def _write(self, data: bytes, key: Hashable = None) -> None:
        self.size += len(data)
        if self._plain is not None:
            self._plain.write(data)
        if key is None:
            self._gzip.write(data)
        else:
            self._gzip.write_apart(data, key)


PAX = "SCHILY.xattr."  # what stands before an attribute's name in a pax header
Attributes = tuple[tuple[str, str], ...]  # names and values, sorted
# Of the build host: its policy's label, the notes of its storage drivers, and the owners that an
# ordinary user's Apptainer could not give.
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
    """The attributes of a tar's member, without those of the host that it comes from."""
    headers = member.pax_headers
    if not headers:
        return ()
    names = (name.removeprefix(PAX) for name in sorted(headers) if name.startswith(PAX))
    return tuple((name, headers[PAX + name]) for name in names if not name.startswith(_OF_HOST))


def users_attributes(member: tarfile.TarInfo) -> Attributes:
    """Those that every user may give: every format keeps them, whoever packs it."""
    return tuple(one for one in attributes_of(member) if not one[0].startswith(_OF_ROOT))


def roots_attributes(member: tarfile.TarInfo) -> Attributes:
    """Those that only root may give, such as a program's capabilities."""
    return tuple(one for one in attributes_of(member) if one[0].startswith(_OF_ROOT))


def as_headers(attributes: Attributes) -> dict[str, str]:
    """Attributes as a member's pax headers."""
    return {PAX + name: text for name, text in attributes}


# Level 6 takes half as much again of processor time for 1 % less (docs/performance.md).
LEVEL = 5
PART = 1 << 20  # plain bytes of a part at most
_WAITING = 4  # parts for each thread that may wait to be written: bounds the memory
_RAW = -zlib.MAX_WBITS
# No time, no name; "unknown" for the system, as https://www.rfc-editor.org/rfc/rfc1952 has it
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST_BLOCK = b"\x03\x00"


@dataclass(frozen=True, slots=True)
class Part:
    """Deflated bytes, with the size and the CRC-32 of what was deflated."""

    data: bytes
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part lies in a gzip file: offset and length there, plain size and CRC-32."""

    offset: int
    length: int
    size: int
    crc: int

    def part(self, file: IO[bytes]) -> Part:
        """The part, read from the file that it lies in; several threads may share the file."""
        data = os.pread(file.fileno(), self.length, self.offset)
        return Part(data=data, size=self.size, crc=self.crc)


@contextmanager
def threads() -> Iterator[ThreadPoolExecutor]:
    """One thread for each core that this process may use."""
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        yield pool


class Gzip:
    """Writes a gzip file; `digest` is its SHA-256 and `size` its bytes, once it is closed.

    `places` says where the parts are that were written under a key.
    """

    def __init__(self, sink: IO[bytes], pool: ThreadPoolExecutor) -> None:
        self.size = 0
        self.places: dict[Hashable, list[Place]] = {}
        self._sink, self._pool = sink, pool
        self._hash = hashlib.sha256()
        self._plain_size, self._crc = 0, 0
        self._gathered = bytearray()
        self._waiting: deque[tuple[Future[Part], Hashable]] = deque()
        self._limit = _WAITING * pool._max_workers
        self._put(_HEADER)

    @property
    def digest(self) -> str:
        """The SHA-256 of the file, in hexadecimal."""
        return self._hash.hexdigest()

    def write(self, data: bytes) -> None:
        """Write bytes, together in parts with what is written next to them."""
        self._gathered += data
        while len(self._gathered) >= PART:
            self._submit(_deflated, bytes(self._gathered[:PART]))
            del self._gathered[:PART]

    def write_apart(self, data: bytes, key: Hashable) -> None:
        """Write at most `PART` bytes as a part of their own, which `places` tells of."""
        self._cut()
        self._submit(_deflated, data, key=key)

    def write_again(self, places: Sequence[Place], file: IO[bytes]) -> None:
        """Write the parts that lie in another file, without deflating them again."""
        self._cut()
        for place in places:
            self._submit(place.part, file)

    def close(self) -> None:
        """Write what is left, and the file's end."""
        self._cut()
        while self._waiting:
            self._settle()
        end = self._crc.to_bytes(4, "little") + (self._plain_size & 0xFFFFFFFF).to_bytes(
            4, "little"
        )
        self._put(_LAST_BLOCK + end)

    def _cut(self) -> None:
        if self._gathered:
            self._submit(_deflated, bytes(self._gathered))
            self._gathered.clear()

    def _submit(
        self, work: Callable[..., Part], *given: bytes | IO[bytes], key: Hashable = None
    ) -> None:
        self._waiting.append((self._pool.submit(work, *given), key))
        while len(self._waiting) > self._limit:
            self._settle()

    def _settle(self) -> None:
        """Write the part that comes next."""
        future, key = self._waiting.popleft()
        part = future.result()
        if key is not None:
            place = Place(self.size, len(part.data), part.size, part.crc)
            self.places.setdefault(key, []).append(place)
        self._crc = combined(self._crc, part.crc, part.size)
        self._plain_size += part.size
        self._put(part.data)

    def _put(self, data: bytes) -> None:
        self._hash.update(data)
        self.size += len(data)
        self._sink.write(data)


def _deflated(data: bytes) -> Part:
    deflater = zlib.compressobj(LEVEL, zlib.DEFLATED, _RAW)
    packed = deflater.compress(data) + deflater.flush(zlib.Z_FULL_FLUSH)
    return Part(data=packed, size=len(data), crc=zlib.crc32(data))


def combined(first: int, second: int, size: int) -> int:
    """The CRC-32 of two runs of bytes, of which the second has `size`, from those of each.

    As zlib's crc32_combine does, which Python lacks: a shift by `size` bytes is a multiplication
    by x^(8 * size), modulo the CRC's polynomial.
    """
    return _product(_power(size), first) ^ second


_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31  # x^0: the highest bit holds the lowest power


def _product(one: int, other: int) -> int:
    result = 0
    bit = _ONE
    while one:
        if one & bit:
            result ^= other
            one ^= bit
        bit >>= 1
        other = (other >> 1) ^ _POLYNOMIAL if other & 1 else other >> 1
    return result


@functools.lru_cache(maxsize=1024)
def _power(size: int) -> int:
    """x^(8 * size)."""
    result, square = _ONE, 1 << 23  # x^8
    while size:
        if size & 1:
            result = _product(square, result)
        square = _product(square, square)
        size >>= 1
    return result
