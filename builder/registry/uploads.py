"""A blob into a registry: in one request, or from where it broke off on, in pieces.

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
from builder.registry.deadlines import LEAST_GAIN, BodyLimits
from builder.registry.failures import Passing, RegistryFailed, WrongContent
from builder.registry.references import Descriptor
from builder.registry.repository import Repository

_READ = 1 << 20
_PIECE = 32 << 20  # bytes of a request where a registry takes no larger ones (413)
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

    `digest` is the one that the content is said to have: a file is read only if it is missing
    there, and `WrongContent` is raised if it holds something else. A file is never held in memory.
    With `missing`, the repository is known not to have it.
    """
    if digest and not missing and registry.has_blob(digest):
        return Descriptor(media_type=media_type, digest=digest, size=_size(source))
    wanted = _described(source, media_type)
    if digest and wanted.digest != digest:
        shown = source if isinstance(source, Path) else "what was to be uploaded"
        raise WrongContent(f"{shown}: it holds {wanted.digest}, and has to hold {digest}")
    if digest or missing or not registry.has_blob(wanted.digest):
        limits = BodyLimits.from_now(wanted.size)
        _upload(_Upload(registry=registry, source=source, wanted=wanted, limits=limits))
    return wanted


def _size(source: Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _described(source: Path | bytes, media_type: str) -> Descriptor:
    if isinstance(source, bytes):
        return Descriptor.of(source, media_type)
    digest = f"sha256:{sha256_of_file(source)}"
    return Descriptor(media_type=media_type, digest=digest, size=_size(source))


@dataclass(kw_only=True, slots=True)
class _Upload:
    """One blob on its way: `location` is the registry's session for it, `there` what it has.

    `piece` is the most bytes of a request, 0 without a limit.
    """

    registry: Repository
    source: Path | bytes
    wanted: Descriptor
    limits: BodyLimits
    location: str = ""
    there: int = 0
    piece: int = 0

    def body(self, end: int) -> Callable[[], _Part]:
        """What is sent from `there` on: a file that is opened for each request."""
        return lambda: _Part(self.source, self.there, end, self.registry.transport.sleep.check)


def _upload(upload: _Upload) -> None:
    patience = upload.registry.transport.patience()
    while True:
        before = upload.there
        try:
            if not upload.location:
                _begin(upload)
            _send(upload)
        except Passing as passing:
            _look(upload)
            if upload.there - before >= LEAST_GAIN:
                patience.gained()
            patience.after(passing)
        except _TooLarge as error:
            if upload.piece:
                raise error.failure from error
            upload.piece, upload.location, upload.there = _PIECE, "", 0
        else:
            return


def _begin(upload: _Upload) -> None:
    with upload.registry.asked("POST", "blobs/uploads/", good=(202,)) as answer:
        upload.location, upload.there = _location(upload, answer), 0


def _send(upload: _Upload) -> None:
    """Send what is missing: all of it with the digest, or pieces first, and then the digest."""
    size = upload.wanted.size
    if upload.there or upload.piece:
        while upload.there < size:
            _send_piece(upload, min(size, upload.there + (upload.piece or size)))
    _request(upload, "PUT", size, good=(201, 204))


def _send_piece(upload: _Upload, end: int) -> None:
    answer = _request(upload, "PATCH", end, good=(202, 204))
    upload.location, upload.there = _location(upload, answer), end


def _request(upload: _Upload, method: str, end: int, good: tuple[int, ...]) -> requests.Response:
    """One part of the blob, in one request."""
    headers, location, size = dict(_OCTETS), upload.location, end - upload.there
    if method == "PATCH":
        headers["Content-Range"] = f"{upload.there}-{end - 1}"
    else:
        location += f"{'&' if '?' in location else '?'}digest={upload.wanted.digest}"
    answer = upload.registry.once(
        method,
        location,
        headers=headers,
        body=upload.body(end) if size else None,
        good=(*good, requests.codes.request_entity_too_large),
        limits=upload.limits,
    )
    with answer:
        if answer.status_code == requests.codes.request_entity_too_large:
            raise _TooLarge(
                RegistryFailed(
                    f"{upload.registry.name}: {upload.wanted.digest}: the registry takes no "
                    f"requests of {size} bytes"
                )
            )
    upload.registry.transport.count(size)
    return answer


def _look(upload: _Upload) -> None:
    """Ask how much of a blob has come, after a request that broke off; if in doubt, none."""
    location, upload.location = upload.location, ""
    there, upload.there = upload.there, 0
    if not location:
        return
    try:
        with upload.registry.once("GET", location, good=(204, 200)) as answer:
            found = _RANGE.fullmatch(answer.headers.get("Range", ""))
            last = int(found[1]) if found else 0
            # `0-0` is what registries say of no byte, and of one.
            if there <= last + 1 and 0 < last < upload.wanted.size:
                upload.location, upload.there = _location(upload, answer, location), last + 1
    except (RegistryFailed, Passing):
        return


def _location(upload: _Upload, answer: requests.Response, absent: str = "") -> str:
    location: str = answer.headers.get("Location", absent)
    if not location:
        raise RegistryFailed(f"{upload.registry.name}: it does not say where uploads go")
    return location


class _TooLarge(Exception):
    """A registry, or a proxy before it, takes no request of that size."""

    def __init__(self, failure: RegistryFailed) -> None:
        super().__init__(str(failure))
        self.failure = failure


class _Part:
    """A part of a blob, as what requests takes for a file that knows its length.

    `check` is called before each piece, and raises when the upload is to end.
    """

    def __init__(
        self, source: Path | bytes, start: int, end: int, check: Callable[[], object]
    ) -> None:
        self._check = check
        self._file: IO[bytes] = (
            io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        )
        self._file.seek(start)
        self._left = self._length = end - start

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read(_READ):
            yield piece

    def read(self, size: int = -1) -> bytes:
        self._check()
        if not self._left:
            return b""
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        if not data:
            raise StepFailed("a file that is being uploaded has become shorter")
        self._left -= len(data)
        if not self._left:
            self._file.close()
        return data
