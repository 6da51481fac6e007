"""Requests to one repository of a registry; content is checked against its digest.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from urllib3 import HTTPResponse

from builder.model.digests import Descriptor, canonical_json, digest_of, is_digest
from builder.model.errors import BadInput
from builder.model.exact_json import part
from builder.registry.connections import BodyLimits
from builder.registry.credentials import DELETE, PULL, PUSH, Scope
from builder.registry.failures import (
    NotFound,
    RegistryFailed,
    Transient,
    WrongContent,
    length_of,
)
from builder.registry.manifests import INDEX, LARGEST_MANIFEST, MANIFEST, Source, descriptors
from builder.registry.references import is_tag, read_descriptor
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
_MOST_REFERRERS = 1000  # of one image; a longer list is refused
_ACTIONS = {"GET": PULL, "HEAD": PULL, "DELETE": DELETE}


class Repository(Source):
    """A repository's manifests, referrers, tags and small blobs. All threads may share an instance.

    Every method may raise `Unreachable`, `Denied` or `RegistryFailed` (builder.registry.failures);
    methods that read may also raise `NotFound` and `WrongContent`.
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
        except NotFound:
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
        except NotFound:
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

        With a `media_type`, the list is optional for a registry: raises `NotFound` if the response
        has another type. Raises `WrongContent` for a list with too many pages.
        """
        for _ in range(_MOST_PAGES):
            content, headers = self._fetch(path, resource, optional=bool(media_type))
            if media_type and _type_of(headers) != media_type:
                raise NotFound(f"{self.name}: {resource}: the registry returned no such list")
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

    # Referrers: manifests with a `subject`, such as the proof, SIF and tarball of an image. If a
    # registry has no list of them, or does not confirm that it noted a subject, clients maintain an
    # index under the tag `sha256-...` in its place. An update is a read and a write: clients on
    # this machine take a lock, and each checks whether a client on another machine overwrote its
    # entry. https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#listing-referrers

    def referrers(self, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
        """Return the referrers of a manifest, of all artifact types or of one.

        They come from the registry's list, or from the tag `sha256-...` if it has no list. A caller
        that needs proof must read each manifest and check that its `subject` is the digest.
        """
        transport = self.transport
        listed = self._listed(digest) if transport.lists_referrers else None
        if not listed:  # some registries without lists return an empty one
            entries = self._entries(digest, self._fallback(digest) or {})
            if entries and listed is None:  # the repository exists, so the registry has no lists
                transport.lists_referrers = False
            listed = entries
        return tuple(item for item in listed if artifact_type in {"", item.artifact_type})

    def _listed(self, digest: str) -> list[Descriptor] | None:
        """Return the registry's own list; None if its response is not an index.

        GHCR redirects to a page of GitHub, which answers 404 or 429
        (https://github.com/artifacthub/hub/issues/4785); others answer 200 with a web page
        (https://github.com/google/go-containerregistry/pull/1968).
        """
        path = f"/v2/{self.repository}/referrers/{digest}"
        listed: list[Descriptor] = []
        try:
            for page in self.pages(path, f"referrers/{digest}", media_type=INDEX):
                listed += self._entries(digest, page)
                if len(listed) > _MOST_REFERRERS:
                    problem = f"more than {_MOST_REFERRERS} referrers of {digest}"
                    raise WrongContent(f"{self.name}: {problem}")
        except NotFound:
            if listed:  # an incomplete list does not mean that the registry has none
                raise
            return None
        return listed

    def attach(self, content: bytes, media_type: str = MANIFEST) -> Descriptor:
        """Write a manifest that has a `subject`, so that the subject's `referrers` include it."""
        return self.attach_all([content], media_type)[0]

    def attach_all(self, contents: Sequence[bytes], media_type: str = MANIFEST) -> list[Descriptor]:
        """Write several manifests that have a `subject`; return their descriptors, in order."""
        written: list[Descriptor] = []
        unlisted: dict[str, list[Descriptor]] = {}
        for content in contents:
            parsed = json.loads(content)
            subject = read_descriptor(parsed.get("subject"), "the attached manifest").digest
            descriptor, noted = self.put_manifest(content, media_type)
            kind = parsed.get("artifactType") or parsed.get("config", {}).get("mediaType", "")
            notes = parsed.get("annotations") or {}
            written.append(dataclasses.replace(descriptor, artifact_type=kind, annotations=notes))
            if not noted:  # the specification requires the tag's index then, even beside a list
                unlisted.setdefault(subject, []).append(written[-1])
        for subject, entries in unlisted.items():
            with self._list_lock(subject):
                self._add(subject, entries)
        return written

    def detach(self, digest: str, digests: Collection[str]) -> None:
        """Remove referrers of a manifest, if the registry allows that.

        The fallback tag's index is changed first, so that all its entries always exist.
        """
        with self._list_lock(digest), contextlib.suppress(RegistryFailed, Transient):
            index = self._fallback(digest)
            listed = part(index, "manifests") or []
            remaining = [entry for entry in listed if part(entry, "digest") not in digests]
            if index is not None and len(remaining) < len(listed):
                content = canonical_json({**index, "manifests": remaining})
                self.write_manifest(content, INDEX, fallback_tag(digest))
        for manifest in digests:
            with contextlib.suppress(RegistryFailed, Transient):
                path = f"manifests/{manifest}"
                self.request_once("DELETE", path, good=(202, 200, 204)).close()

    def _list_lock(self, digest: str) -> AbstractContextManager[None]:
        return self.transport.write_lock(f"the referrers of {self.name}@{digest}")

    def _add(self, subject: str, entries: Sequence[Descriptor]) -> None:
        """Add referrers to the fallback tag's index; repeat if another client overwrites it."""
        retries, digests = self.transport.retries(), {entry.digest for entry in entries}
        while True:
            index = self._fallback(subject)
            if index is None:
                where = f"{self.name}:{fallback_tag(subject)}"
                raise RegistryFailed(f"{where}: the list of referrers is not an index")
            listed = {entry.digest for entry in self._entries(subject, index)}
            if digests <= listed:
                return
            new = {entry.digest: entry.as_json() for entry in entries if entry.digest not in listed}
            index["manifests"] = [*(part(index, "manifests") or []), *new.values()]
            self.write_manifest(canonical_json(index), INDEX, fallback_tag(subject))
            now = self._fallback(subject) or {}
            if digests <= {entry.digest for entry in self._entries(subject, now)}:
                return
            lost = f"{self.name}: another client overwrote the list of referrers of {subject}"
            retries.wait(Transient(RegistryFailed(lost, hint="run the same command again")))

    def _fallback(self, digest: str) -> dict[str, object] | None:
        """Return the fallback tag's index, an empty one without it; None if it is not an index.

        GitLab's registry interprets such a tag as the digest, and returns the subject itself
        (https://github.com/oras-project/oras-go/issues/1396).
        """
        try:
            descriptor, index = self.document(fallback_tag(digest))
        except NotFound:
            return {"schemaVersion": 2, "mediaType": INDEX, "manifests": []}
        return index if descriptor.media_type == INDEX and descriptor.digest != digest else None

    def _entries(self, digest: str, page: dict[str, object]) -> list[Descriptor]:
        return descriptors(page, "manifests", f"{self.name}: referrers of {digest}")


def fallback_tag(digest: str) -> str:
    """Return the tag that replaces a registry's list of referrers: `sha256-...`."""
    return digest.replace(":", "-", 1)


def _type_of(headers: Mapping[str, str]) -> str:
    return headers.get("Content-Type", "").partition(";")[0].strip()
