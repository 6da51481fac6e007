"""SHA-256 of what there is in memory, in streams and in files, in one place."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO

_CHUNK = 1 << 20


def digest_of(data: bytes) -> str:
    """`sha256:...` of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def sha256_of(data: IO[bytes]) -> str:
    """The SHA-256 of the rest of a stream, in hexadecimal."""
    digest = hashlib.sha256()
    while chunk := data.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return sha256_of(file)
