"""Requests to one repository of a registry; content is checked against its digest.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from urllib3 import HTTPResponse

from builder.model.digests import digest_of
from builder.model.errors import BadInput
from builder.model.exact_json import part
from builder.registry.connections import BodyLimits
from builder.registry.credentials import DELETE, PULL, PUSH, Scope
from builder.registry.failures import NotThere, RegistryFailed, Transient, length_of
from builder.registry.manifests import INDEX, LARGEST_MANIFEST, MANIFEST, Source
from builder.registry.references import Descriptor, is_digest, is_tag
from builder.registry.transport import Request, Transport
from builder.system.web import next_page, printable

DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEXES = (INDEX, DOCKER_LIST)
MANIFESTS = (MANIFEST, DOCKER_MANIFEST)
_ACCEPT = {"Accept": ", ".join((*INDEXES, *MANIFESTS))}
# Error codes that are temporary: another client is writing the same blobs. The registry of
# Debian 12 sends the first one for an entry that is only partly written.
_WRITTEN_NOW = ("DIGEST_INVALID", "MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN")
_MOST_PAGES = 1000
_ACTIONS = {"GET": PULL, "HEAD": PULL, "DELETE": DELETE}


class Repository(Source):
    """A repository's manifests, tags and small blobs. All threads may share an instance.

    Every method may raise `Unreachable`, `Denied` or `RegistryFailed` (builder.registry.failures);
    methods that read may also raise `NotThere` and `WrongContent`.
    """

    def __init__(self, transport: Transport, repository: str) -> None:
        self.transport, self.repository = transport, repository

    @property
    def name(self) -> str:
        return f"{self.transport.registry}/{self.repository}"

    def stop(self) -> None:
        self.transport.sleep.stop()

    def check(self) -> None:
        self.transport.sleep.check()

    # Manifests

    def read(self, target: str | Descriptor) -> tuple[Descriptor, bytes]:
        expected = target if isinstance(target, Descriptor) else None
        name = expected.digest if expected else str(target)
        content, headers = self._fetch(f"manifests/{name}", name, headers=_ACCEPT)
        manifest = Descriptor.of(content, expected.media_type if expected else _type_of(headers))
        if is_digest(name) and manifest.digest != name:
            raise self.wrong(name, f"the registry sent {manifest.digest}")
        if expected and expected.size != manifest.size:
            problem = f"it has {manifest.size} bytes, expected {expected.size}"
            raise self.wrong(name, problem)
        return manifest, content

    def write_manifest(self, content: bytes, media_type: str, target: str = "") -> Descriptor:
        """Write a manifest under a tag, or by its digest alone if `target` is empty."""
        return self.put_manifest(content, media_type, target)[0]

    def put_manifest(
        self, content: bytes, media_type: str, target: str = ""
    ) -> tuple[Descriptor, bool]:
        """Write a manifest; return its descriptor, and whether the registry noted its subject.

        Raises `BadInput` for a target that is neither tag nor digest: it becomes part of a path.
        """
        if target and not (is_tag(target) or is_digest(target)):
            shown = printable(target)
            raise BadInput(f'{self.name}: "{shown}" is neither a tag nor a digest')
        descriptor = Descriptor.of(content, media_type)

        def attempt() -> tuple[str, bool]:
            try:
                return self._put(descriptor, content, target)
            except RegistryFailed as error:
                if error.code in _WRITTEN_NOW:
                    raise Transient(error) from None
                raise

        stored, is_noted = self.transport.retried(attempt)
        if stored != descriptor.digest:
            raise self.wrong(descriptor.digest, f"the registry stored it as {printable(stored)}")
        return descriptor, is_noted

    def _put(self, descriptor: Descriptor, content: bytes, target: str) -> tuple[str, bool]:
        with self.request_once(
            "PUT",
            f"manifests/{target or descriptor.digest}",
            headers={"Content-Type": descriptor.media_type},
            body=lambda: content,
            good=(201, 202, 200),
        ) as response:
            stored = response.headers.get("Docker-Content-Digest", descriptor.digest)
            return stored, "OCI-Subject" in response.headers

    def tags(self) -> list[str]:
        """Return all tags; none if the repository does not exist."""
        try:
            pages = [part(page, "tags") or [] for page in self.pages("tags/list", "tags/list")]
        except NotThere:
            return []
        if not all(isinstance(page, list) for page in pages):
            raise self.wrong("tags/list", "not a list")
        return [tag for page in pages for tag in page if isinstance(tag, str)]

    # Blobs

    def has_blob(self, digest: str) -> bool:
        """Return whether the repository has a blob."""
        try:
            with self.request("HEAD", f"blobs/{digest}"):
                return True
        except NotThere:
            return False

    def small_blob(self, blob: Descriptor, limit: int = LARGEST_MANIFEST) -> bytes:
        if blob.size > limit:
            raise self.wrong(blob.digest, f"it has {blob.size} bytes; the limit is {limit}")
        content, _ = self._fetch(f"blobs/{blob.digest}", blob.digest, limit)
        if digest_of(content) != blob.digest or len(content) != blob.size:
            raise self.wrong(blob.digest, f"the registry sent {digest_of(content)}")
        return content

    def mount_blob(self, digest: str, repository: str) -> bool:
        """Mount a blob from another repository of the same registry; return whether it worked."""
        path = f"blobs/uploads/?{urlencode({'mount': digest, 'from': repository})}"
        scope = Scope(repository=self.repository, actions=PUSH, also=(repository,))
        session = ""
        with contextlib.suppress(RegistryFailed, Transient):  # the upload will raise the error
            with self.request("POST", path, good=(201, 202), scope=scope) as response:
                if response.status == HTTPStatus.CREATED:
                    return True
                session = response.headers.get("Location", "")
            if session:
                self.request_once("DELETE", session, good=(204, 202, 200)).close()
        return False

    # Requests

    def request(self, method: str, path: str, **more: Any) -> HTTPResponse:
        """Return the response of `request_once`; temporary failures are retried."""
        return self.transport.retried(lambda: self.request_once(method, path, **more))

    def request_once(
        self, method: str, path: str, *, scope: Scope | None = None, **more: Any
    ) -> HTTPResponse:
        """Return the response to a single request; see `Transport.request_once`.

        `path` is relative to the repository, or a URL of the registry.
        """
        actions = _ACTIONS.get(method, PUSH)
        label = path.partition("?")[0] if "://" not in path else "upload"
        is_own = not (path.startswith("/") or "://" in path)
        return self.transport.request_once(
            Request(method=method, resource=f"{self.name}: {printable(label)}", **more),
            f"/v2/{self.repository}/{path}" if is_own else path,
            scope or Scope(repository=self.repository, actions=actions),
        )

    def pages(
        self, path: str, resource: str, *, media_type: str = ""
    ) -> Iterator[dict[str, object]]:
        """Yield the JSON objects of a list that may have several pages.

        With a `media_type`, the list is optional for a registry: raises `NotThere` if the response
        has another type. Raises `WrongContent` for a list with too many pages.
        """
        for _ in range(_MOST_PAGES):
            content, headers = self._fetch(path, resource, optional=bool(media_type))
            if media_type and _type_of(headers) != media_type:
                raise NotThere(f"{self.name}: {resource}: the registry returned no such list")
            with self.transport.reading(f"{self.name}: {resource}"):
                path = next_page(headers.get("Link", ""))
            yield self.object_of(content, resource)
            if not path:
                return
        raise self.wrong(resource, f"a list of more than {_MOST_PAGES} pages")

    def _fetch(
        self,
        path: str,
        resource: str,
        limit: int = LARGEST_MANIFEST,
        headers: Mapping[str, str] | None = None,
        *,
        optional: bool = False,
    ) -> tuple[bytes, Mapping[str, str]]:
        limits, sent = BodyLimits(size=limit), headers or {}

        def attempt() -> tuple[bytes, Mapping[str, str]]:
            with self.request_once(
                "GET", path, headers=sent, optional=optional, limits=limits
            ) as response:
                return self._read_limited(response, resource, limit), response.headers

        return self.transport.retried(attempt)

    def _read_limited(self, response: HTTPResponse, resource: str, limit: int) -> bytes:
        """Return the body of a response; raise `WrongContent` above `limit` bytes."""
        with self.transport.reading(f"{self.name}: {resource}"):
            length = length_of(response)
            content = b"" if length > limit else response.read(limit + 1, decode_content=False)
            if len(content) < length <= limit:
                raise ConnectionError(f"received {len(content)} of {length} bytes")
        if length > limit or len(content) > limit:
            size = f"{length} bytes" if length > limit else f"more than {limit} bytes"
            raise self.wrong(resource, f"it has {size}; the limit is {limit}")
        return content


def _type_of(headers: Mapping[str, str]) -> str:
    return headers.get("Content-Type", "").partition(";")[0].strip()
