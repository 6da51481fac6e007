"""Gzipped tar files: written member by member, deflated on all cores, in parts that can be reused.

A part is deflated by itself and ends at a byte, so parts follow each other in any order (RFC 1951).
They are cut by the bytes that are written, not by time: the same writes give the same bytes,
whatever the number of threads.
"""

from __future__ import annotations

import functools
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
# Level 6 takes half as much again of processor time for 1 % less (docs/performance.md).
LEVEL = 5
PART = 1 << 20  # plain bytes of a part at most
_BLOCK = tarfile.BLOCKSIZE
_WAITING = 4  # parts for each thread that may wait to be written: bounds the memory
# No time, no name; "unknown" for the system, as https://www.rfc-editor.org/rfc/rfc1952 has it
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST_BLOCK = b"\x03\x00"
_Part = tuple[bytes, int, int]  # deflated bytes, with the plain bytes' number and CRC-32


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
        self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if data is None:
            return
        key = self.size if member.size >= APART else None
        remaining = member.size
        while remaining:
            chunk = data.read(min(remaining, PART))
            if not chunk:
                raise EOFError(f"/{member.name}: {remaining} bytes are missing")
            remaining -= len(chunk)
            self._write(chunk, key)
        self._pad(member.size)

    def add_again(
        self, member: tarfile.TarInfo, places: Sequence[PartPlace], file: IO[bytes]
    ) -> None:
        """Add a large file whose parts lie in another gzip file; `plain` does not receive it."""
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

    def _write(self, data: bytes, key: int | None = None) -> None:
        self.size += len(data)
        if self._plain is not None:
            self._plain.write(data)
        if key is None:
            self._gzip.write(data)
        else:
            self._gzip.write_apart(data, key)


@dataclass(frozen=True, slots=True)
class PartPlace:
    """The place of a part in a gzip file: offset and length there, plain size and CRC-32."""

    offset: int
    length: int
    size: int
    crc: int

    def part(self, file: IO[bytes]) -> _Part:
        """Return the part, from the file that it lies in; several threads may share the file."""
        return os.pread(file.fileno(), self.length, self.offset), self.size, self.crc


@contextmanager
def threads() -> Iterator[ThreadPoolExecutor]:
    """Start one thread for each core that this process may use."""
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        yield pool


class Gzip:
    """Writes a gzip file; `digest` is its SHA-256 and `size` its bytes, once it is closed.

    `places` has those of the parts that were written under a key.
    """

    def __init__(self, sink: IO[bytes], pool: ThreadPoolExecutor) -> None:
        self.size = 0
        self.places: dict[int, list[PartPlace]] = {}
        self._sink, self._pool = sink, pool
        self._hash = hashlib.sha256()
        self._plain_size, self._crc = 0, 0
        self._gathered = bytearray()
        self._waiting: deque[tuple[Future[_Part], int | None]] = deque()
        self._limit = _WAITING * pool._max_workers
        self._put(_HEADER)

    @property
    def digest(self) -> str:
        """The SHA-256 of the file, in hexadecimal."""
        return self._hash.hexdigest()

    def write(self, data: bytes) -> None:
        """Write bytes, together in parts with those that are written next to them."""
        self._gathered += data
        while len(self._gathered) >= PART:
            self._submit(_deflated, bytes(self._gathered[:PART]))
            del self._gathered[:PART]

    def write_apart(self, data: bytes, key: int) -> None:
        """Write at most `PART` bytes as a part of their own, and note its place under a key."""
        self._cut()
        self._submit(_deflated, data, key=key)

    def write_again(self, places: Sequence[PartPlace], file: IO[bytes]) -> None:
        """Write the parts that lie in another file, without deflating them again."""
        self._cut()
        for place in places:
            self._submit(place.part, file)

    def close(self) -> None:
        """Write the parts that wait, and the file's end."""
        self._cut()
        while self._waiting:
            self._settle()
        numbers = (self._crc, self._plain_size & 0xFFFFFFFF)
        self._put(_LAST_BLOCK + b"".join(number.to_bytes(4, "little") for number in numbers))

    def _cut(self) -> None:
        if self._gathered:
            self._submit(_deflated, bytes(self._gathered))
            self._gathered.clear()

    def _submit(
        self, work: Callable[..., _Part], source: bytes | IO[bytes], key: int | None = None
    ) -> None:
        self._waiting.append((self._pool.submit(work, source), key))
        while len(self._waiting) > self._limit:
            self._settle()

    def _settle(self) -> None:
        """Write the part that comes next."""
        future, key = self._waiting.popleft()
        data, size, crc = future.result()
        if key is not None:
            place = PartPlace(self.size, len(data), size, crc)
            self.places.setdefault(key, []).append(place)
        self._crc = combined(self._crc, crc, size)
        self._plain_size += size
        self._put(data)

    def _put(self, data: bytes) -> None:
        self._hash.update(data)
        self.size += len(data)
        self._sink.write(data)


def _deflated(data: bytes) -> _Part:
    deflater = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = deflater.compress(data) + deflater.flush(zlib.Z_FULL_FLUSH)
    return packed, len(data), zlib.crc32(data)


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
    """Return the attributes of a tar's member, without those of the host that it comes from."""
    headers = sorted(member.pax_headers.items())
    pairs = ((name.removeprefix(PAX), text) for name, text in headers if name.startswith(PAX))
    return tuple(pair for pair in pairs if not pair[0].startswith(_OF_HOST))


def users_attributes(member: tarfile.TarInfo) -> Attributes:
    """Return those that every user may give: every format keeps them, whoever packs it."""
    return tuple(one for one in attributes_of(member) if not one[0].startswith(_OF_ROOT))


def roots_attributes(member: tarfile.TarInfo) -> Attributes:
    """Return those that only root may give, such as a program's capabilities."""
    return tuple(one for one in attributes_of(member) if one[0].startswith(_OF_ROOT))


def as_headers(attributes: Attributes) -> dict[str, str]:
    """Return attributes as a member's pax headers."""
    return {PAX + name: text for name, text in attributes}


def combined(first: int, second: int, size: int) -> int:
    """Return the CRC-32 of two runs of bytes, the second of `size`, from the CRC-32 of each.

    As zlib's crc32_combine does, which Python lacks: a shift by `size` bytes is a multiplication
    by x^(8 * size), modulo the CRC's polynomial.
    """
    return _product(_power(size), first) ^ second


_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31  # x^0: the highest bit holds the lowest power


def _product(first: int, second: int) -> int:
    result = 0
    bit = _ONE
    while first:
        if first & bit:
            result ^= second
            first ^= bit
        bit >>= 1
        second = (second >> 1) ^ _POLYNOMIAL if second & 1 else second >> 1
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
