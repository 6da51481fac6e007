"""Uploads of blobs: in one request, or in chunks, resumed where they broke off.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pushing-blobs
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import requests

from builder.model.digests import sha256_of_file
from builder.model.errors import StepFailed
from builder.registry.connections import LEAST_GAIN, BodyLimits
from builder.registry.failures import RegistryFailed, Transient, WrongContent
from builder.registry.references import Descriptor
from builder.registry.repository import Repository

_READ = 1 << 20
_CHUNK = 32 << 20  # bytes of a request where a registry takes no larger ones (413)
_OCTETS = {"Content-Type": "application/octet-stream"}
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")


def write_blob(
    registry: Repository,
    source: Path | bytes,
    *,
    media_type: str,
    digest: str = "",
    missing: bool = False,
) -> Descriptor:
    """Upload a blob, unless the repository has it already.

    `digest` is the expected one: a file is read only if the repository lacks it, and `WrongContent`
    is raised if it holds something else. A file is never held in memory. With `missing`, the
    repository is known not to have it.
    """
    if digest and not missing and registry.has_blob(digest):
        return Descriptor(media_type=media_type, digest=digest, size=_size(source))
    blob = _descriptor_of(source, media_type)
    if digest and blob.digest != digest:
        shown = source if isinstance(source, Path) else "what was to be uploaded"
        raise WrongContent(f"{shown}: it holds {blob.digest}, and has to hold {digest}")
    if digest or missing or not registry.has_blob(blob.digest):
        limits = BodyLimits.from_now(blob.size)
        _upload(_Upload(registry=registry, source=source, blob=blob, limits=limits))
    return blob


def _size(source: Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _descriptor_of(source: Path | bytes, media_type: str) -> Descriptor:
    if isinstance(source, bytes):
        return Descriptor.of(source, media_type)
    digest = f"sha256:{sha256_of_file(source)}"
    return Descriptor(media_type=media_type, digest=digest, size=_size(source))


@dataclass(kw_only=True, slots=True)
class _Upload:
    """The upload of a blob: `location` is the registry's session, `offset` the bytes it has.

    `chunk` is the most bytes of a request, 0 without a limit.
    """

    registry: Repository
    source: Path | bytes
    blob: Descriptor
    limits: BodyLimits
    location: str = ""
    offset: int = 0
    chunk: int = 0

    def body(self, end: int) -> Callable[[], _Part]:
        """Return the body from `offset` on: a file that is opened for each request."""
        return lambda: _Part(self.source, self.offset, end, self.registry.transport.sleep.check)


def _upload(upload: _Upload) -> None:
    retries = upload.registry.transport.retries()
    while True:
        before = upload.offset
        try:
            if not upload.location:
                _begin(upload)
            _send(upload)
        except Transient as transient:
            _find_offset(upload)
            if upload.offset - before >= LEAST_GAIN:
                retries.reset()
            retries.wait(transient)
        except _TooLarge as error:
            if upload.chunk:
                raise error.failure from error
            upload.chunk, upload.location, upload.offset = _CHUNK, "", 0
        else:
            return


def _begin(upload: _Upload) -> None:
    with upload.registry.request("POST", "blobs/uploads/", good=(202,)) as response:
        upload.location, upload.offset = _location(upload, response), 0


def _send(upload: _Upload) -> None:
    """Send the missing bytes: all with the digest, or chunks first, and then the digest."""
    size = upload.blob.size
    if upload.offset or upload.chunk:
        while upload.offset < size:
            _send_chunk(upload, min(size, upload.offset + (upload.chunk or size)))
    _request(upload, "PUT", size, good=(201, 204))


def _send_chunk(upload: _Upload, end: int) -> None:
    response = _request(upload, "PATCH", end, good=(202, 204))
    upload.location, upload.offset = _location(upload, response), end


def _request(upload: _Upload, method: str, end: int, good: tuple[int, ...]) -> requests.Response:
    """Send one part of the blob, in one request."""
    headers, location, size = dict(_OCTETS), upload.location, end - upload.offset
    if method == "PATCH":
        headers["Content-Range"] = f"{upload.offset}-{end - 1}"
    else:
        location += f"{'&' if '?' in location else '?'}digest={upload.blob.digest}"
    response = upload.registry.request_once(
        method,
        location,
        headers=headers,
        body=upload.body(end) if size else None,
        good=(*good, requests.codes.request_entity_too_large),
        limits=upload.limits,
    )
    with response:
        if response.status_code == requests.codes.request_entity_too_large:
            raise _TooLarge(
                RegistryFailed(
                    f"{upload.registry.name}: {upload.blob.digest}: the registry takes no "
                    f"requests of {size} bytes"
                )
            )
    upload.registry.transport.count(size)
    return response


def _find_offset(upload: _Upload) -> None:
    """Ask for the offset after a request that broke off; if in doubt, begin again."""
    location, upload.location = upload.location, ""
    offset, upload.offset = upload.offset, 0
    if not location:
        return
    try:
        with upload.registry.request_once("GET", location, good=(204, 200)) as response:
            match = _RANGE.fullmatch(response.headers.get("Range", ""))
            last = int(match[1]) if match else 0
            # Registries send `0-0` for no byte, and for one.
            if offset <= last + 1 and 0 < last < upload.blob.size:
                upload.location, upload.offset = _location(upload, response, location), last + 1
    except (RegistryFailed, Transient):
        return


def _location(upload: _Upload, response: requests.Response, absent: str = "") -> str:
    location: str = response.headers.get("Location", absent)
    if not location:
        raise RegistryFailed(f"{upload.registry.name}: it does not say where uploads go")
    return location


class _TooLarge(Exception):
    """A registry, or a proxy before it, takes no request of that size."""

    def __init__(self, failure: RegistryFailed) -> None:
        super().__init__(str(failure))
        self.failure = failure


class _Part:
    """A part of a blob, as a file of known length for requests.

    `check` is called before each chunk, and raises when the upload is to end.
    """

    def __init__(
        self, source: Path | bytes, start: int, end: int, check: Callable[[], object]
    ) -> None:
        self._check = check
        self._file: IO[bytes] = (
            io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        )
        self._file.seek(start)
        self._remaining = self._length = end - start

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read(_READ):
            yield chunk

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
