"""Requests to one repository of a registry; each answer is checked against its digest.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import requests

from builder.model.digests import digest_of
from builder.model.errors import BadInput
from builder.model.exact_json import part
from builder.registry.answers import length_of, whole
from builder.registry.authorization import DELETE, PULL, PUSH, Scope
from builder.registry.deadlines import BodyLimits
from builder.registry.failures import NotThere, Passing, RegistryFailed
from builder.registry.kinds import INDEX, MANIFEST
from builder.registry.references import Descriptor, is_digest, is_tag
from builder.registry.source import LARGEST_MANIFEST, Source
from builder.registry.transport import Transport
from builder.registry.web import next_page, printable

DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEXES = (INDEX, DOCKER_LIST)
MANIFESTS = (MANIFEST, DOCKER_MANIFEST)
_ACCEPT = {"Accept": ", ".join((*INDEXES, *MANIFESTS))}
# What a registry says of blobs that it has, while another client writes the same ones; that of
# Debian 12 says the first of an entry that it reads half written.
_SOON_THERE = ("DIGEST_INVALID", "MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN")
_MOST_PAGES = 1000


class Repository(Source):
    """A repository's manifests, tags and small blobs. One value serves all threads.

    Every method may raise `Unreachable`, `Denied` or `RegistryFailed` (builder.registry.failures),
    those that read `NotThere` and `WrongContent`, too.
    """

    def __init__(self, transport: Transport, repository: str) -> None:
        self.transport, self.repository = transport, repository

    @property
    def name(self) -> str:
        """`quay.io/site/pytorch`."""
        return f"{self.transport.registry}/{self.repository}"

    def stop(self) -> None:
        """End all requests and waits of this registry."""
        self.transport.sleep.stop()

    # Manifests

    def read(self, target: str | Descriptor) -> tuple[Descriptor, bytes]:
        """A manifest by tag, digest or descriptor, and its bytes.

        Raises `WrongContent` when it has another digest or size than the one named, or more than
        4 MiB.
        """
        wanted = target if isinstance(target, Descriptor) else None
        name = wanted.digest if wanted else str(target)
        content, said = self._fetch(f"manifests/{name}", name, headers=_ACCEPT)
        found = Descriptor.of(content, wanted.media_type if wanted else _type_of(said))
        if is_digest(name) and found.digest != name:
            raise self.wrong(name, f"the registry gives {found.digest}")
        if wanted and wanted.size != found.size:
            raise self.wrong(name, f"it has {found.size} bytes, and is said to have {wanted.size}")
        return found, content

    def write_manifest(self, content: bytes, media_type: str, target: str = "") -> Descriptor:
        """Write a manifest under a tag, or by its digest alone if `target` is empty."""
        return self.put_manifest(content, media_type, target)[0]

    def put_manifest(
        self, content: bytes, media_type: str, target: str = ""
    ) -> tuple[Descriptor, bool]:
        """Write a manifest; and whether the registry has taken note of its subject by itself.

        Raises `BadInput` for a target that is no tag and no digest: it becomes part of a path.
        """
        if target and not (is_tag(target) or is_digest(target)):
            raise BadInput(f'{self.name}: "{printable(target)}" is no tag and no digest')
        found, patience = Descriptor.of(content, media_type), self.transport.patience()
        while True:
            try:
                given, noted = self._put(found, content, target)
                break
            except Passing as passing:
                patience.after(passing)
            except RegistryFailed as error:
                if error.code not in _SOON_THERE:
                    raise
                patience.after(Passing(error))
        if given != found.digest:
            raise self.wrong(found.digest, f"the registry keeps it as {printable(given)}")
        return found, noted

    def _put(self, found: Descriptor, content: bytes, target: str) -> tuple[str, bool]:
        with self.once(
            "PUT",
            f"manifests/{target or found.digest}",
            headers={"Content-Type": found.media_type},
            body=lambda: content,
            good=(201, 202, 200),
        ) as answer:
            given = answer.headers.get("Docker-Content-Digest", found.digest)
            return given, "OCI-Subject" in answer.headers

    def tags(self) -> list[str]:
        """All tags; none in a repository that does not exist."""
        try:
            pages = [part(page, "tags") or [] for page in self.pages("tags/list", "tags/list")]
        except NotThere:
            return []
        if not all(isinstance(page, list) for page in pages):
            raise self.wrong("tags/list", "it is no list")
        return [tag for page in pages for tag in page if isinstance(tag, str)]

    # Blobs

    def has_blob(self, digest: str) -> bool:
        """Whether the repository has a blob."""
        try:
            with self.asked("HEAD", f"blobs/{digest}"):
                return True
        except NotThere:
            return False

    def small_blob(self, wanted: Descriptor, limit: int = LARGEST_MANIFEST) -> bytes:
        """The bytes of a blob that is at most `limit` bytes: a config, a proof, a list."""
        if wanted.size > limit:
            raise self.wrong(wanted.digest, f"it has {wanted.size} bytes, at most {limit} are read")
        content, _ = self._fetch(f"blobs/{wanted.digest}", wanted.digest, limit)
        if digest_of(content) != wanted.digest or len(content) != wanted.size:
            raise self.wrong(wanted.digest, f"the registry gives {digest_of(content)}")
        return content

    def mount_blob(self, digest: str, repository: str) -> bool:
        """Take a blob over from another repository of the same registry; whether that went."""
        path = f"blobs/uploads/?{urlencode({'mount': digest, 'from': repository})}"
        scope = Scope(repository=self.repository, actions=PUSH, also=(repository,))
        session = ""
        with contextlib.suppress(RegistryFailed, Passing):  # uploading will tell what is wrong
            with self.asked("POST", path, good=(201, 202), scope=scope) as answer:
                if answer.status_code == requests.codes.created:
                    return True
                session = answer.headers.get("Location", "")
            if session:
                gone = Scope(repository=self.repository, actions=DELETE)
                self.once("DELETE", session, good=(204, 202, 200), scope=gone).close()
        return False

    # Requests

    def asked(
        self, method: str, path: str, **more: Any
    ) -> contextlib.AbstractContextManager[requests.Response]:
        """An answer as a context; see `Transport.asked`."""
        return self.transport.asked(**self._request(method, path, **more))

    def once(self, method: str, path: str, **more: Any) -> requests.Response:
        """An answer to a request that is made once; see `Transport.once`."""
        return self.transport.once(**self._request(method, path, **more))

    def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """A request's parts; `path` is below the repository, or a URL that the registry gave."""
        reads = method in {"GET", "HEAD"}
        scope = Scope(repository=self.repository, actions=PULL if reads else PUSH)
        shown = path.partition("?")[0] if "://" not in path else "upload"
        own = path if path.startswith("/") or "://" in path else f"/v2/{self.repository}/{path}"
        what = f"{self.repository}: {printable(shown)}"
        return {"method": method, "path": own, "scope": scope, "what": what, **more}

    def pages(self, path: str, what: str, *, media_type: str = "") -> Iterator[dict[str, object]]:
        """The JSON objects of a list that may come in pages.

        With a `media_type`, the list is one that a registry need not keep: raises `NotThere`
        unless it answers with that type. Raises `WrongContent` for a list without an end.
        """
        for _ in range(_MOST_PAGES):
            content, said = self._fetch(path, what, optional=bool(media_type))
            if media_type and _type_of(said) != media_type:
                raise NotThere(f"{self.name}: {what}: what the registry gives is no such list")
            with self.transport.guarded(f"{self.repository}: {what}"):
                path = next_page(said.get("Link", ""))
            yield self.object_of(content, what, "list")
            if not path:
                return
        raise self.wrong(what, f"a list of more than {_MOST_PAGES} pages")

    def _fetch(
        self,
        path: str,
        what: str,
        limit: int = LARGEST_MANIFEST,
        headers: Mapping[str, str] | None = None,
        *,
        optional: bool = False,
    ) -> tuple[bytes, Mapping[str, str]]:
        """A small thing whole, and the headers that came with it."""
        patience = self.transport.patience()
        while True:
            try:
                with self.once(
                    "GET", path, headers=headers, optional=optional, limits=BodyLimits(size=limit)
                ) as answer:
                    return self._whole(answer, what, limit), answer.headers
            except Passing as passing:
                patience.after(passing)

    def _whole(self, answer: requests.Response, what: str, limit: int) -> bytes:
        """The body of an answer, which is refused if it is larger than `limit` bytes."""
        with self.transport.guarded(f"{self.repository}: {what}"):
            length = length_of(answer)
        if length > limit:
            raise self.wrong(what, f"it has {length} bytes, at most {limit} are read")
        with self.transport.guarded(f"{self.repository}: {what}"):
            content = whole(answer, limit)
        if len(content) > limit:
            raise self.wrong(what, f"it has more than {limit} bytes")
        return content


def _type_of(headers: Mapping[str, str]) -> str:
    """The media type of an answer, without its parameters."""
    return headers.get("Content-Type", "").partition(";")[0].strip()
