"""What refers to a manifest by its `subject`: proof, SIF and tarball of an image.

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
from collections.abc import Collection, Iterator, Sequence

from builder.model.digests import digest_of
from builder.model.exact_json import part
from builder.registry.authorization import DELETE, Scope
from builder.registry.failures import NotThere, Passing, RegistryFailed, WrongContent
from builder.registry.kinds import INDEX, as_bytes
from builder.registry.references import Descriptor
from builder.registry.repository import Repository

MOST = 1000  # of one image; a longer list is not read to its end


def fallback_tag(digest: str) -> str:
    """The tag under which a registry without a list of referrers has one: `sha256-...`."""
    return digest.replace(":", "-", 1)


def referrers(registry: Repository, digest: str, artifact_type: str) -> tuple[Descriptor, ...]:
    """See `Registry.referrers`."""
    transport = registry.transport
    found = _listed(registry, digest) if transport.learned.lists_referrers else None
    if not found:  # or a list of nothing, of a registry that keeps none and does not say so
        kept = _entries(registry, digest, _fallback(registry, digest) or {})
        if kept and found is None:  # the repository is there, and the registry has no lists
            transport.learned.lists_referrers = False
        found = kept
    return tuple(one for one in found if artifact_type in {"", one.artifact_type})


def _listed(registry: Repository, digest: str) -> list[Descriptor] | None:
    """The registry's own list; None if it keeps none: only an index is one.

    GHCR leads to a page of GitHub's, which answers 404 or 429
    (https://github.com/artifacthub/hub/issues/4785); others answer 200 with a page of their own
    (https://github.com/google/go-containerregistry/pull/1968).
    """
    path = f"/v2/{registry.repository}/referrers/{digest}"
    found: list[Descriptor] = []
    try:
        for page in registry.pages(path, f"referrers/{digest}", media_type=INDEX):
            found += _entries(registry, digest, page)
            if len(found) > MOST:
                raise WrongContent(f"{registry.name}: more than {MOST} refer to {digest}")
    except NotThere:
        if found:  # a list that breaks off is not one that is not kept
            raise
        return None
    return found


def attach(registry: Repository, contents: Sequence[bytes], media_type: str) -> list[Descriptor]:
    """See `Registry.attach_all`."""
    written: list[Descriptor] = []
    unlisted: dict[str, list[Descriptor]] = {}
    for content in contents:
        parsed = json.loads(content)
        subject = Descriptor.read(parsed.get("subject"), "what is attached").digest
        found, noted = registry.put_manifest(content, media_type)
        kind = parsed.get("artifactType") or parsed.get("config", {}).get("mediaType", "")
        notes = parsed.get("annotations") or {}
        written.append(dataclasses.replace(found, artifact_type=kind, annotations=notes))
        if not noted:  # the specification asks for the tag's list then, whatever lists there are
            unlisted.setdefault(subject, []).append(written[-1])
    for subject, entries in unlisted.items():
        with _our_list(registry, subject):
            _add(registry, subject, entries)
    return written


def detach(registry: Repository, digest: str, gone: Collection[str]) -> None:
    """See `Registry.detach`. First from the list that we keep: it names nothing that is not there.

    That manifests cannot be deleted by everybody, or at all, is no failure: they stay.
    """
    with _our_list(registry, digest), contextlib.suppress(RegistryFailed, Passing):
        index = _fallback(registry, digest)
        listed = part(index, "manifests") or []
        left = [one for one in listed if part(one, "digest") not in gone]
        if index is not None and len(left) < len(listed):
            content = as_bytes({**index, "manifests": left})
            registry.write_manifest(content, INDEX, fallback_tag(digest))
    scope = Scope(repository=registry.repository, actions=DELETE)
    for one in gone:
        with contextlib.suppress(RegistryFailed, Passing):
            path = f"manifests/{one}"
            registry.once("DELETE", path, good=(202, 200, 204), scope=scope).close()


@contextlib.contextmanager
def _our_list(registry: Repository, digest: str) -> Iterator[None]:
    """Clients of this machine take turns at the fallback's list of a manifest."""
    shown = f"the list of what refers to {registry.name}@{digest}"
    with registry.transport.turn(digest_of(shown.encode()).partition(":")[2], shown):
        yield


def _add(registry: Repository, subject: str, entries: Sequence[Descriptor]) -> None:
    """Enter referrers into the index under the fallback's tag, until they are there to stay."""
    patience, wanted = registry.transport.patience(), {one.digest for one in entries}
    while True:
        index = _fallback(registry, subject)
        if index is None:
            where = f"{registry.name}:{fallback_tag(subject)}"
            raise RegistryFailed(f"{where}: there has to be a list of referrers, and is none")
        there = {one.digest for one in _entries(registry, subject, index)}
        if wanted <= there:
            return
        new = {one.digest: one.as_json() for one in entries if one.digest not in there}
        index["manifests"] = [*(part(index, "manifests") or []), *new.values()]
        registry.write_manifest(as_bytes(index), INDEX, fallback_tag(subject))
        now = _fallback(registry, subject) or {}
        if wanted <= {one.digest for one in _entries(registry, subject, now)}:
            return
        lost = f"{registry.name}: another client wrote over the list of what refers to {subject}"
        patience.after(Passing(RegistryFailed(lost, hint="run the same command again")))


def _fallback(registry: Repository, digest: str) -> dict[str, object] | None:
    """The index under the fallback's tag, an empty one if there is none; None for anything else.

    GitLab's registry takes such a tag for the digest, and gives what is referred to
    (https://github.com/oras-project/oras-go/issues/1396).
    """
    try:
        found, index = registry.document(fallback_tag(digest))
    except NotThere:
        return {"schemaVersion": 2, "mediaType": INDEX, "manifests": []}
    return index if found.media_type == INDEX and found.digest != digest else None


def _entries(registry: Repository, digest: str, page: dict[str, object]) -> list[Descriptor]:
    entries = page.get("manifests") or []
    if not isinstance(entries, list):
        raise WrongContent(f"{registry.name}: the list of what refers to {digest} is none")
    where = f"{registry.name}: what refers to {digest}"
    return [Descriptor.read(one, where) for one in entries]
