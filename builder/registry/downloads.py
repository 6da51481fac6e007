"""Downloads of blobs: hashed as they come, resumed where they broke off."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

import requests
import urllib3.exceptions

from builder.registry.connections import LEAST_GAIN, BodyLimits
from builder.registry.failures import Transient, WrongContent
from builder.registry.references import Descriptor
from builder.registry.repository import Repository
from builder.system.files import discard

_CHUNK = 1 << 16  # bytes; a partial chunk is lost
OnBytes = Callable[[int], object]


def read_blob(registry: Repository, blob: Descriptor, path: Path, on_bytes: OnBytes) -> None:
    """See `Registry.read_blob`."""
    with path.open("ab+") as raw:
        file = HashingFile(raw, blob.size)
        is_resumed = file.size > 0
        try:
            while True:
                _fill(registry, blob, file, on_bytes)
                if file.digest == blob.digest:
                    return
                if not is_resumed:
                    raise registry.wrong(blob.digest, f"the registry gives {file.digest}")
                is_resumed = False  # the bytes in the file may be wrong: once more, from the start
                file.empty()
        except WrongContent:
            discard(path)
            raise


def _fill(registry: Repository, blob: Descriptor, file: HashingFile, on_bytes: OnBytes) -> None:
    """Fetch the missing end of a blob, in as many attempts as `Retries` allows."""
    retries, limits = registry.transport.retries(), BodyLimits.from_now(blob.size)
    while file.size < blob.size:
        before = file.size
        try:
            _append(registry, blob, file, on_bytes, limits)
        except Transient as transient:
            if file.size - before >= LEAST_GAIN:
                retries.reset()
            retries.wait(transient)


def _append(
    registry: Repository, blob: Descriptor, file: HashingFile, on_bytes: OnBytes, limits: BodyLimits
) -> None:
    """Fetch the missing end of a blob, once. Raises `Transient` when that breaks off."""
    offset, transport = file.size, registry.transport
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    good = (200, 206, 416) if offset else (200,)
    path = f"blobs/{blob.digest}"
    with registry.request_once("GET", path, headers=headers, good=good, limits=limits) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            raise registry.wrong(blob.digest, f"it ends after {offset} of {blob.size} bytes")
        if response.status_code == requests.codes.ok:
            file.empty()
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            raise registry.wrong(blob.digest, "the registry sends another part than asked for")
        try:
            while chunk := response.raw.read(_CHUNK, decode_content=False):
                if file.size + len(chunk) > blob.size:
                    raise registry.wrong(blob.digest, f"it has more than {blob.size} bytes")
                file.append(chunk)
                on_bytes(len(chunk))
        except (urllib3.exceptions.HTTPError, ConnectionError, TimeoutError) as error:
            raise transport.broken(error, f"{registry.repository}: {blob.digest}") from error
    if file.size < blob.size:
        short = EOFError(f"{file.size} of {blob.size} bytes came")
        raise transport.broken(short, f"{registry.repository}: {blob.digest}")


class HashingFile:
    """A file to append to, and its digest; one of more than `limit` bytes is emptied first."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file = file
        self._digest, self.size = hashlib.sha256(), 0
        if os.fstat(file.fileno()).st_size > limit:
            self.empty()
        file.seek(0)
        while chunk := file.read(_CHUNK):
            self._note(chunk)

    @property
    def digest(self) -> str:
        """Return the digest of all bytes, `sha256:...`."""
        return f"sha256:{self._digest.hexdigest()}"

    def append(self, chunk: bytes) -> None:
        """Write a chunk."""
        self._file.write(chunk)
        self._note(chunk)

    def empty(self) -> None:
        """Drop all bytes."""
        self._file.truncate(0)
        self._digest, self.size = hashlib.sha256(), 0

    def _note(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        self.size += len(chunk)
