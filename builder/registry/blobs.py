"""Transfers of blobs of any size; an interrupted transfer is resumed.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pushing-blobs
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO

from urllib3 import HTTPResponse

from builder.model.digests import Descriptor, digest_of_file, sha256_of
from builder.model.errors import StepFailed
from builder.registry.connections import BodyLimits
from builder.registry.failures import RegistryFailed, Transient, WrongContent
from builder.registry.repository import Repository
from builder.system.files import discard

_READ = 1 << 16  # bytes of one read of a download; an interruption loses a partial chunk
_PART = 32 << 20  # bytes of a request to a registry that refuses larger ones (413)
_PIECE = 1 << 20  # bytes of an upload in one write
_OCTETS = "application/octet-stream"
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")


def read_blob(registry: Repository, blob: Descriptor, path: Path) -> None:
    """Write a blob to a file, resuming after the bytes in it, and check its digest.

    The file never gets more bytes than the blob has. If the content is wrong, the file is removed
    and `WrongContent` is raised; after any other failure, its bytes stay.
    """
    try:
        with path.open("ab+") as file:
            if _size_of(file) > blob.size:
                file.truncate(0)
            is_resumed = _size_of(file) > 0
            digest = _filled(registry, blob, file)
            if is_resumed and digest != blob.digest:  # the bytes in the file may have been wrong
                file.truncate(0)
                digest = _filled(registry, blob, file)
        if digest != blob.digest:
            raise registry.wrong(blob.digest, f"the registry sent {digest}")
    except WrongContent:
        discard(path)
        raise


def _size_of(file: IO[bytes]) -> int:
    return file.seek(0, os.SEEK_END)


def _filled(registry: Repository, blob: Descriptor, file: IO[bytes]) -> str:
    """Fetch the missing end of a blob, in as many attempts as `Retries` allows; return its digest.

    Raises `WrongContent` if the registry sends more bytes than the blob has.
    """
    retries, limits = registry.transport.retries(), BodyLimits.from_now(blob.size)
    while (before := _size_of(file)) < blob.size:
        try:
            _append(registry, blob, file, limits)
        except Transient as transient:
            retries.wait(transient, gained=_size_of(file) - before)
    file.seek(0)
    return f"sha256:{sha256_of(file)}"


def _append(registry: Repository, blob: Descriptor, file: IO[bytes], limits: BodyLimits) -> None:
    """Fetch the missing end of a blob in one attempt; raises `Transient` if that fails."""
    size = _size_of(file)
    headers = {"Range": f"bytes={size}-"} if size else {}
    good = (200, 206, 416) if size else (200,)
    path = f"blobs/{blob.digest}"
    with (
        registry.request_once("GET", path, headers=headers, good=good, limits=limits) as response,
        registry.transport.reading(f"{registry.name}: {path}"),
    ):
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise registry.wrong(blob.digest, f"it ends after {size} of {blob.size} bytes")
        if response.status == HTTPStatus.OK:
            file.truncate(size := 0)
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {size}-"):
            raise registry.wrong(blob.digest, "the registry sent a range that was not requested")
        while chunk := response.read(_READ, decode_content=False):
            size += len(chunk)
            if size > blob.size:
                raise registry.wrong(blob.digest, f"it has more than {blob.size} bytes")
            file.write(chunk)
        if size < blob.size:
            raise ConnectionError(f"received {size} of {blob.size} bytes")


def write_blob(
    registry: Repository,
    source: Path | bytes,
    *,
    media_type: str = _OCTETS,
    digest: str = "",
    missing: bool = False,
) -> Descriptor:
    """Upload a blob, unless the repository has it already.

    `digest` is the expected one: a file is read only if the repository lacks the blob;
    `WrongContent` is raised if the file's digest differs. A file is never held in memory. With
    `missing`, the repository is known to lack the blob.
    """
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    if digest and not missing and registry.has_blob(digest):
        return Descriptor(media_type=media_type, digest=digest, size=size)
    if isinstance(source, bytes):
        blob = Descriptor.of(source, media_type)
    else:
        actual = digest_of_file(source)
        blob = Descriptor(media_type=media_type, digest=actual, size=size)
    if digest and blob.digest != digest:
        shown = source if isinstance(source, Path) else "the bytes to upload"
        raise WrongContent(f"{shown}: its digest is {blob.digest}, expected {digest}")
    if digest or missing or not registry.has_blob(blob.digest):
        limits = BodyLimits.from_now(blob.size)
        _Upload(registry=registry, source=source, blob=blob, limits=limits).run()
    return blob


@dataclass(kw_only=True, slots=True)
class _Upload:
    """The upload of a blob: `location` is the URL of the upload session.

    `offset` counts the bytes that the registry has; `part` limits the bytes of a request (0: none).
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
                if error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE or self.part:
                    raise
                self.part, self.location = _PART, ""
            else:
                return

    def _begin(self) -> None:
        with self.registry.request("POST", "blobs/uploads/", good=(202,)) as response:
            self.location, self.offset = self._location_in(response), 0

    def _send(self) -> None:
        """Send the missing bytes: in one request with the digest, or in parts before the digest."""
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
        size = end - self.offset
        headers = {"Content-Type": _OCTETS, "Content-Length": str(size)}
        response = self.registry.request_once(
            method,
            url,
            headers={**headers, **({"Content-Range": part} if part else {})},
            body=(lambda: self._pieces(size)) if size else None,
            good=good,
            limits=self.limits,
        )
        response.close()
        return response

    def _pieces(self, size: int) -> Iterator[bytes]:
        """Yield the next bytes of the blob, for one request."""
        source = self.source
        with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
            file.seek(self.offset)
            while size:
                self.registry.check()
                piece = file.read(min(size, _PIECE))
                if not piece:
                    raise StepFailed("a file became shorter during its upload")
                size -= len(piece)
                yield piece

    def _find_offset(self) -> None:
        """Ask for the offset after an interrupted request; begin again if it is unclear."""
        location, offset = self.location, self.offset
        self.location, self.offset = "", 0
        if not location:
            return
        with (
            contextlib.suppress(RegistryFailed, Transient),
            self.registry.request_once("GET", location, good=(204, 200)) as response,
        ):
            match = _RANGE.fullmatch(response.headers.get("Range", ""))
            last = int(match[1]) if match else 0
            # Registries send `0-0` both for no byte and for one byte.
            if offset <= last + 1 and 0 < last < self.blob.size:
                self.location = self._location_in(response, location)
                self.offset = last + 1

    def _location_in(self, response: HTTPResponse, absent: str = "") -> str:
        location: str = response.headers.get("Location", absent)
        if not location:
            raise RegistryFailed(f"{self.registry.name}: the registry returned no upload URL")
        return location
