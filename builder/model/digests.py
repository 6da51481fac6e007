"""SHA-256 of bytes in memory, in streams and in files."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import IO

_CHUNK = 1 << 20


class HashedWriter:
    """Write a file from start to end; count and hash the bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hash, self.size = file, hashlib.sha256(), 0

    @property
    def digest(self) -> str:
        """The digest `sha256:...` of the bytes written so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)


class HashedReader(io.RawIOBase):
    """Read a file from start to end; count and hash the bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file, self._hash, self.size = file, hashlib.sha256(), 0

    @property
    def digest(self) -> str:
        """The digest `sha256:...` of the bytes read so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        self.size += len(data)
        return data


def digest_of(data: bytes) -> str:
    """Return the digest `sha256:...` of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def digest_of_file(path: Path) -> str:
    """Return the digest `sha256:...` of a file."""
    return f"sha256:{sha256_of_file(path)}"


def sha256_of(data: IO[bytes]) -> str:
    """Return the SHA-256 of the rest of a stream, in hexadecimal."""
    digest = hashlib.sha256()
    while chunk := data.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return sha256_of(file)


def canonical_json(value: object) -> bytes:
    """Return a value's JSON with sorted keys, without spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256_of_json(content: object) -> str:
    """Return the SHA-256 of a value's `canonical_json`, in hexadecimal."""
    return hashlib.sha256(canonical_json(content)).hexdigest()
