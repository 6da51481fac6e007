"""Blobs of any size: transfers are resumed where they broke off.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pushing-blobs
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO

import urllib3.exceptions
from urllib3 import HTTPResponse

from builder.model.digests import sha256_of_file
from builder.model.errors import StepFailed
from builder.registry.connections import BodyLimits
from builder.registry.failures import RegistryFailed, Transient, WrongContent
from builder.registry.references import Descriptor
from builder.registry.repository import Repository
from builder.system.files import discard

_READ = 1 << 16  # bytes of a download at once; a partial chunk is lost
_PART = 32 << 20  # bytes of a request where a registry takes no larger ones (413)
_OCTETS = "application/octet-stream"
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")


def read_blob(registry: Repository, blob: Descriptor, path: Path) -> None:
    """Write a blob to a file, resuming after the bytes in it, and check its digest.

    Never are more bytes written than the blob has. Raises `WrongContent` and removes the file;
    after another failure, its bytes stay.
    """
    try:
        with path.open("ab+") as file:
            if _size_of(file) > blob.size:
                file.truncate(0)
            is_resumed = _size_of(file) > 0
            while True:
                _fill(registry, blob, file)
                digest = f"sha256:{sha256_of_file(path)}"
                if digest == blob.digest:
                    return
                if not is_resumed:
                    raise registry.wrong(blob.digest, f"the registry gives {digest}")
                is_resumed = False  # the bytes in the file may be wrong: once more, from the start
                file.truncate(0)
    except WrongContent:
        discard(path)
        raise


def _size_of(file: IO[bytes]) -> int:
    return file.seek(0, os.SEEK_END)


def _fill(registry: Repository, blob: Descriptor, file: IO[bytes]) -> None:
    """Fetch the missing end of a blob, in as many attempts as `Retries` allows."""
    retries, limits = registry.transport.retries(), BodyLimits.from_now(blob.size)
    while (before := _size_of(file)) < blob.size:
        try:
            _append(registry, blob, file, limits)
        except Transient as transient:
            retries.wait(transient, gained=_size_of(file) - before)


def _append(registry: Repository, blob: Descriptor, file: IO[bytes], limits: BodyLimits) -> None:
    """Fetch the missing end of a blob, once. Raises `Transient` when that breaks off."""
    size = _size_of(file)
    headers = {"Range": f"bytes={size}-"} if size else {}
    good = (200, 206, 416) if size else (200,)
    path = f"blobs/{blob.digest}"
    with registry.request_once("GET", path, headers=headers, good=good, limits=limits) as response:
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise registry.wrong(blob.digest, f"it ends after {size} of {blob.size} bytes")
        if response.status == HTTPStatus.OK:
            file.truncate(size := 0)
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {size}-"):
            raise registry.wrong(blob.digest, "the registry sends another part than asked for")
        try:
            while chunk := response.read(_READ, decode_content=False):
                size += len(chunk)
                if size > blob.size:
                    raise registry.wrong(blob.digest, f"it has more than {blob.size} bytes")
                file.write(chunk)
        except (urllib3.exceptions.HTTPError, ConnectionError, TimeoutError) as error:
            raise registry.transport.broken(error, f"{registry.repository}: {path}") from error
    if size < blob.size:
        short = EOFError(f"{size} of {blob.size} bytes came")
        raise registry.transport.broken(short, f"{registry.repository}: {path}")


def write_blob(
    registry: Repository,
    source: Path | bytes,
    *,
    media_type: str = _OCTETS,
    digest: str = "",
    missing: bool = False,
) -> Descriptor:
    """Upload a blob, unless the repository has it already.

    `digest` is the expected one: a file is read only if the repository lacks it, and `WrongContent`
    is raised if it holds something else. A file is never held in memory. With `missing`, the
    repository is known not to have it.
    """
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    if digest and not missing and registry.has_blob(digest):
        return Descriptor(media_type=media_type, digest=digest, size=size)
    if isinstance(source, bytes):
        blob = Descriptor.of(source, media_type)
    else:
        actual = f"sha256:{sha256_of_file(source)}"
        blob = Descriptor(media_type=media_type, digest=actual, size=size)
    if digest and blob.digest != digest:
        shown = source if isinstance(source, Path) else "the bytes to upload"
        raise WrongContent(f"{shown}: it holds {blob.digest}, expected {digest}")
    if digest or missing or not registry.has_blob(blob.digest):
        limits = BodyLimits.from_now(blob.size)
        _Upload(registry=registry, source=source, blob=blob, limits=limits).run()
    return blob


@dataclass(kw_only=True, slots=True)
class _Upload:
    """The upload of a blob: `location` is the registry's session, `offset` the bytes it has.

    `part` is the most bytes of a request, 0 without a limit.
    """

    registry: Repository
    source: Path | bytes
    blob: Descriptor
    limits: BodyLimits
    location: str = ""
    offset: int = 0
    part: int = 0

    def run(self) -> None:
        """Upload the blob, in as many attempts as `Retries` allows."""
        retries = self.registry.transport.retries()
        while True:
            before = self.offset
            try:
                if not self.location:
                    self._begin()
                self._send()
            except Transient as transient:
                self._find_offset()
                retries.wait(transient, gained=self.offset - before)
            except RegistryFailed as error:
                if error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                    raise
                if self.part:
                    problem = f"the registry takes no requests of {self.part} bytes"
                    at = f"{self.registry.name}: {self.blob.digest}"
                    raise RegistryFailed(f"{at}: {problem}") from error
                self.part, self.location, self.offset = _PART, "", 0
            else:
                return

    def _begin(self) -> None:
        with self.registry.request("POST", "blobs/uploads/", good=(202,)) as response:
            self.location, self.offset = self._location_in(response), 0

    def _send(self) -> None:
        """Send the missing bytes: all with the digest, or parts first, and then the digest."""
        size = self.blob.size
        if self.offset or self.part:
            while self.offset < size:
                end = min(size, self.offset + (self.part or size))
                part = f"{self.offset}-{end - 1}"
                response = self._request("PATCH", self.location, end, (202, 204), part)
                self.location, self.offset = self._location_in(response), end
        mark = "&" if "?" in self.location else "?"
        self._request("PUT", f"{self.location}{mark}digest={self.blob.digest}", size, (201, 204))

    def _request(
        self, method: str, url: str, end: int, good: tuple[int, ...], part: str = ""
    ) -> HTTPResponse:
        size, check = end - self.offset, self.registry.transport.sleep.check
        response = self.registry.request_once(
            method,
            url,
            headers={"Content-Type": _OCTETS, **({"Content-Range": part} if part else {})},
            body=(lambda: _Body(self.source, self.offset, size, check)) if size else None,
            good=good,
            limits=self.limits,
        )
        response.close()
        return response

    def _find_offset(self) -> None:
        """Ask for the offset after a request that broke off; if in doubt, begin again."""
        location, self.location = self.location, ""
        offset, self.offset = self.offset, 0
        if not location:
            return
        try:
            with self.registry.request_once("GET", location, good=(204, 200)) as response:
                match = _RANGE.fullmatch(response.headers.get("Range", ""))
                last = int(match[1]) if match else 0
                # Registries send `0-0` for no byte, and for one.
                if offset <= last + 1 and 0 < last < self.blob.size:
                    self.location = self._location_in(response, location)
                    self.offset = last + 1
        except (RegistryFailed, Transient):
            return

    def _location_in(self, response: HTTPResponse, absent: str = "") -> str:
        location: str = response.headers.get("Location", absent)
        if not location:
            raise RegistryFailed(f"{self.registry.name}: the registry names no address for uploads")
        return location


class _Body:
    """A part of a blob, as a file of known length for requests.

    `check` is called before each chunk, and raises when the upload is to end.
    """

    def __init__(
        self, source: Path | bytes, offset: int, size: int, check: Callable[[], object]
    ) -> None:
        self._check, self._remaining, self._size = check, size, size
        self._file: IO[bytes] = (
            io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        )
        self._file.seek(offset)

    def __len__(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        self._check()
        if not self._remaining:
            return b""
        data = self._file.read(self._remaining if size < 0 else min(size, self._remaining))
        if not data:
            raise StepFailed("a file that is being uploaded has become shorter")
        self._remaining -= len(data)
        if not self._remaining:
            self._file.close()
        return data
