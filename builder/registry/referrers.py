"""Referrers, manifests with a `subject`: proof, SIF and tarball of an image.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#listing-referrers. A
registry without such a list has an index under the tag `sha256-...` in its place; so has one that
does not say that it took note of a subject. Clients keep that up: a read and a write, so those of
this machine take turns, and each looks whether others of other machines wrote over its entry
meanwhile.
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

MOST = 1000  # of one image; a longer list is not read to its end


def fallback_tag(digest: str) -> str:
    """Return the tag that stands in for a registry's list of referrers: `sha256-...`."""
    return digest.replace(":", "-", 1)


def referrers(registry: Repository, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
    """Return the referrers of a manifest; of one artifact type, if one is named.

    From the registry's list, or from the tag `sha256-...` where it keeps none. A caller that takes
    proof from it reads each manifest, and checks that its `subject` is the digest.
    """
    transport = registry.transport
    listed = _listed(registry, digest) if transport.state.lists_referrers else None
    if not listed:  # or a list of nothing, of a registry that keeps none and does not say so
        entries = _entries(registry, digest, _fallback(registry, digest) or {})
        if entries and listed is None:  # the repository is there, and the registry has no lists
            transport.state.lists_referrers = False
        listed = entries
    return tuple(item for item in listed if artifact_type in {"", item.artifact_type})


def _listed(registry: Repository, digest: str) -> list[Descriptor] | None:
    """Return the registry's own list; None if it keeps none: only an index is one.

    GHCR leads to a page of GitHub's, which answers 404 or 429
    (https://github.com/artifacthub/hub/issues/4785); others answer 200 with a page of their own
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
        if listed:  # a list that breaks off is not one that is not kept
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
        subject = Descriptor.read(parsed.get("subject"), "what is attached").digest
        descriptor, noted = registry.put_manifest(content, media_type)
        kind = parsed.get("artifactType") or parsed.get("config", {}).get("mediaType", "")
        notes = parsed.get("annotations") or {}
        written.append(dataclasses.replace(descriptor, artifact_type=kind, annotations=notes))
        if not noted:  # the specification asks for the tag's list then, whatever lists there are
            unlisted.setdefault(subject, []).append(written[-1])
    for subject, entries in unlisted.items():
        with _list_lock(registry, subject):
            _add(registry, subject, entries)
    return written


def detach(registry: Repository, digest: str, digests: Collection[str]) -> None:
    """Remove referrers of a manifest, where the registry allows that.

    First from the fallback's list: its entries always exist.
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
    """Add referrers to the index under the fallback's tag, until they stay in it."""
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
    """Return the fallback tag's index, an empty one if there is none; None for anything else.

    GitLab's registry takes such a tag for the digest, and gives what is referred to
    (https://github.com/oras-project/oras-go/issues/1396).
    """
    try:
        descriptor, index = registry.document(fallback_tag(digest))
    except NotThere:
        return {"schemaVersion": 2, "mediaType": INDEX, "manifests": []}
    return index if descriptor.media_type == INDEX and descriptor.digest != digest else None


def _entries(registry: Repository, digest: str, page: dict[str, object]) -> list[Descriptor]:
    return descriptors(page, "manifests", f"{registry.name}: referrers of {digest}")
