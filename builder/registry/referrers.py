"""Referrers: manifests with a `subject`, such as the proof, SIF and tarball of an image.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#listing-referrers. If a
registry has no such list, or does not confirm that it noted a subject, clients maintain an index
under the tag `sha256-...` in its place. An update is a read and a write: clients on this machine
take a lock, and each checks whether a client on another machine overwrote its entry.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

from builder.model.exact_json import part
from builder.registry.failures import NotThere, RegistryFailed, Transient, WrongContent
from builder.registry.manifests import INDEX, MANIFEST, as_bytes, descriptors
from builder.registry.references import Descriptor
from builder.registry.repository import Repository

MOST = 1000  # referrers of one image; a longer list is refused


def fallback_tag(digest: str) -> str:
    """Return the tag that replaces a registry's list of referrers: `sha256-...`."""
    return digest.replace(":", "-", 1)


def referrers(registry: Repository, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
    """Return the referrers of a manifest, of all artifact types or of one.

    They come from the registry's list, or from the tag `sha256-...` if it has no list. A caller
    that needs proof must read each manifest and check that its `subject` is the digest.
    """
    transport = registry.transport
    listed = _listed(registry, digest) if transport.state.lists_referrers else None
    if not listed:  # some registries without lists return an empty one
        entries = _entries(registry, digest, _fallback(registry, digest) or {})
        if entries and listed is None:  # the repository exists, so the registry has no lists
            transport.state.lists_referrers = False
        listed = entries
    return tuple(item for item in listed if artifact_type in {"", item.artifact_type})


def _listed(registry: Repository, digest: str) -> list[Descriptor] | None:
    """Return the registry's own list; None if its response is not an index.

    GHCR redirects to a page of GitHub, which answers 404 or 429
    (https://github.com/artifacthub/hub/issues/4785); others answer 200 with a web page
    (https://github.com/google/go-containerregistry/pull/1968).
    """
    path = f"/v2/{registry.repository}/referrers/{digest}"
    listed: list[Descriptor] = []
    try:
        for page in registry.pages(path, f"referrers/{digest}", media_type=INDEX):
            listed += _entries(registry, digest, page)
            if len(listed) > MOST:
                raise WrongContent(f"{registry.name}: more than {MOST} referrers of {digest}")
    except NotThere:
        if listed:  # an incomplete list does not mean that the registry has none
            raise
        return None
    return listed


def attach_all(
    registry: Repository, contents: Sequence[bytes], media_type: str = MANIFEST
) -> list[Descriptor]:
    """Write several manifests that have a `subject`; return their descriptors, in order."""
    written: list[Descriptor] = []
    unlisted: dict[str, list[Descriptor]] = {}
    for content in contents:
        parsed = json.loads(content)
        subject = Descriptor.read(parsed.get("subject"), "the attached manifest").digest
        descriptor, noted = registry.put_manifest(content, media_type)
        kind = parsed.get("artifactType") or parsed.get("config", {}).get("mediaType", "")
        notes = parsed.get("annotations") or {}
        written.append(dataclasses.replace(descriptor, artifact_type=kind, annotations=notes))
        if not noted:  # the specification requires the tag's index then, even beside a list
            unlisted.setdefault(subject, []).append(written[-1])
    for subject, entries in unlisted.items():
        with _list_lock(registry, subject):
            _add(registry, subject, entries)
    return written


def detach(registry: Repository, digest: str, digests: Collection[str]) -> None:
    """Remove referrers of a manifest, if the registry allows that.

    The fallback tag's index is changed first, so that all its entries always exist.
    """
    with _list_lock(registry, digest), contextlib.suppress(RegistryFailed, Transient):
        index = _fallback(registry, digest)
        listed = part(index, "manifests") or []
        remaining = [entry for entry in listed if part(entry, "digest") not in digests]
        if index is not None and len(remaining) < len(listed):
            content = as_bytes({**index, "manifests": remaining})
            registry.write_manifest(content, INDEX, fallback_tag(digest))
    for manifest in digests:
        with contextlib.suppress(RegistryFailed, Transient):
            path = f"manifests/{manifest}"
            registry.request_once("DELETE", path, good=(202, 200, 204)).close()


def _list_lock(registry: Repository, digest: str) -> AbstractContextManager[None]:
    return registry.transport.write_lock(f"the referrers of {registry.name}@{digest}")


def _add(registry: Repository, subject: str, entries: Sequence[Descriptor]) -> None:
    """Add referrers to the fallback tag's index; repeat if another client overwrites it."""
    retries, digests = registry.transport.retries(), {entry.digest for entry in entries}
    while True:
        index = _fallback(registry, subject)
        if index is None:
            where = f"{registry.name}:{fallback_tag(subject)}"
            raise RegistryFailed(f"{where}: the list of referrers is not an index")
        listed = {entry.digest for entry in _entries(registry, subject, index)}
        if digests <= listed:
            return
        new = {entry.digest: entry.as_json() for entry in entries if entry.digest not in listed}
        index["manifests"] = [*(part(index, "manifests") or []), *new.values()]
        registry.write_manifest(as_bytes(index), INDEX, fallback_tag(subject))
        now = _fallback(registry, subject) or {}
        if digests <= {entry.digest for entry in _entries(registry, subject, now)}:
            return
        lost = f"{registry.name}: another client overwrote the list of referrers of {subject}"
        retries.wait(Transient(RegistryFailed(lost, hint="run the same command again")))


def _fallback(registry: Repository, digest: str) -> dict[str, object] | None:
    """Return the fallback tag's index, an empty one if it is missing; None if it is not an index.

    GitLab's registry interprets such a tag as the digest, and returns the subject itself
    (https://github.com/oras-project/oras-go/issues/1396).
    """
    try:
        descriptor, index = registry.document(fallback_tag(digest))
    except NotThere:
        return {"schemaVersion": 2, "mediaType": INDEX, "manifests": []}
    return index if descriptor.media_type == INDEX and descriptor.digest != digest else None


def _entries(registry: Repository, digest: str, page: dict[str, object]) -> list[Descriptor]:
    return descriptors(page, "manifests", f"{registry.name}: referrers of {digest}")
