"""A blob from a registry into a file: hashed as it comes, gone on with where it broke off."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

import requests
import urllib3.exceptions

from builder.registry.deadlines import LEAST_GAIN, BodyLimits
from builder.registry.failures import Passing, WrongContent
from builder.registry.references import Descriptor
from builder.registry.repository import Repository
from builder.system.atomic import discard

_PIECE = 1 << 16  # what breaks off within one is lost
OnBytes = Callable[[int], object]


def read_blob(registry: Repository, wanted: Descriptor, path: Path, on_bytes: OnBytes) -> None:
    """See `Registry.read_blob`."""
    with path.open("ab+") as file:
        hashed = Hashed(file, wanted.size)
        kept = hashed.size > 0
        try:
            while True:
                _fill(registry, wanted, hashed, on_bytes)
                if hashed.digest == wanted.digest:
                    return
                if not kept:
                    raise registry.wrong(wanted.digest, f"the registry gives {hashed.digest}")
                kept = False  # perhaps what lay there was wrong: once more, from the beginning
                hashed.empty()
        except WrongContent:
            discard(path)
            raise


def _fill(registry: Repository, wanted: Descriptor, hashed: Hashed, on_bytes: OnBytes) -> None:
    """Fetch what is missing of a blob, as often as it takes and `Patience` allows."""
    patience, limits = registry.transport.patience(), BodyLimits.from_now(wanted.size)
    while hashed.size < wanted.size:
        before = hashed.size
        try:
            _append(registry, wanted, hashed, on_bytes, limits)
        except Passing as passing:
            if hashed.size - before >= LEAST_GAIN:
                patience.gained()
            patience.after(passing)


def _append(
    registry: Repository, wanted: Descriptor, hashed: Hashed, on_bytes: OnBytes, limits: BodyLimits
) -> None:
    """Fetch what is missing of a blob, once. Raises `Passing` when that breaks off."""
    there, transport = hashed.size, registry.transport
    headers = {"Range": f"bytes={there}-"} if there else {}
    good = (200, 206, 416) if there else (200,)
    path = f"blobs/{wanted.digest}"
    with registry.once("GET", path, headers=headers, good=good, limits=limits) as answer:
        if answer.status_code == requests.codes.requested_range_not_satisfiable:
            raise registry.wrong(wanted.digest, f"it ends after {there} of {wanted.size} bytes")
        if answer.status_code == requests.codes.ok:
            hashed.empty()
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {there}-"):
            raise registry.wrong(wanted.digest, "the registry sends another part than asked for")
        try:
            while piece := answer.raw.read(_PIECE, decode_content=False):
                if hashed.size + len(piece) > wanted.size:
                    raise registry.wrong(wanted.digest, f"it has more than {wanted.size} bytes")
                hashed.append(piece)
                on_bytes(len(piece))
        except (urllib3.exceptions.HTTPError, ConnectionError, TimeoutError) as error:
            raise transport.broken(error, f"{registry.repository}: {wanted.digest}") from error
    if hashed.size < wanted.size:
        short = EOFError(f"{hashed.size} of {wanted.size} bytes came")
        raise transport.broken(short, f"{registry.repository}: {wanted.digest}")


class Hashed:
    """A file that is written at its end, and its digest; what is in it already is read first.

    What has more than `limit` bytes is emptied.
    """

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file = file
        self._digest, self.size = hashlib.sha256(), 0
        if os.fstat(file.fileno()).st_size > limit:
            self.empty()
        file.seek(0)
        while piece := file.read(_PIECE):
            self._note(piece)

    @property
    def digest(self) -> str:
        """`sha256:...` of all that is in it."""
        return f"sha256:{self._digest.hexdigest()}"

    def append(self, piece: bytes) -> None:
        """Write a piece."""
        self._file.write(piece)
        self._note(piece)

    def empty(self) -> None:
        """Begin anew."""
        self._file.truncate(0)
        self._digest, self.size = hashlib.sha256(), 0

    def _note(self, piece: bytes) -> None:
        self._digest.update(piece)
        self.size += len(piece)
