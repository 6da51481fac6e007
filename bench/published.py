"""What a registry has of the releases that were made for tests, and what it lacks of them."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.model.predicates import CYCLONEDX as BILL
from builder.model.predicates import SLSA, TEST_RESULT
from builder.registry import Credentials, NotFound, Reference, Registry, connect, manifests
from builder.registry.manifests import CYCLONEDX, SIF, STATEMENT, TARBALL
from builder.trust.proof.attachments import BUNDLE, ProofManifest
from builder.trust.proof.attestations import attestation_tag, signature_tag
from builder.trust.proof.keys import PublicKey, as_cosign_key, generate_key
from builder.trust.proof.verification import TrustedKey, verified

RECIPES = ("tools", "app")
TAG = "1.0-sample"
SIGNING = {"COSIGN_PASSWORD": ""}  # what opens a key of `made_key`
STATEMENTS = (*[TEST_RESULT] * 3, SLSA, BILL)  # that are signed of an image
_UNSIGNED = (CYCLONEDX, *[STATEMENT] * 3)
_SIGNED = (BUNDLE,) * (1 + len(STATEMENTS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A pair of keys in files; `key` is the public one."""

    private: Path
    public: Path
    key: PublicKey


def made_key(folder: Path) -> Pair:
    """A new pair to sign with, as `build-images keys generate` makes it."""
    key, private, public = generate_key(), folder / "site.key", folder / "site.pub"
    private.write_bytes(as_cosign_key(key, b""))
    private.chmod(0o600)
    public.write_bytes(key.public.pem)
    return Pair(private=private, public=public, key=key.public)


def repository(host: str, recipe: str, namespace: str = "site") -> Registry:
    return connect(Reference.parse(f"{host}/{namespace}/{recipe}"), Credentials(files=()))


def own_tags(registry: Registry) -> set[str]:
    """The tags that people pull by."""
    return {tag for tag in registry.tags() if not tag.startswith("sha256-")}


def unproven(host: str, namespace: str = "site", key: PublicKey | None = None) -> list[str]:
    """What is under a tag and should not be: not there, or without its proof, signed by a key."""
    found: list[str] = []
    for recipe in RECIPES:
        registry = repository(host, recipe, namespace)
        known: dict[str, list[str]] = {}  # a release has several tags
        for tag in sorted(own_tags(registry)):
            index, parsed = registry.document(tag)
            if index.digest not in known:
                known[index.digest] = _unproven(registry, index.digest, parsed["manifests"], key)
            found += [f"{tag}: {text}" for text in known[index.digest]]
    return found


def _unproven(
    registry: Registry, index: str, images: Sequence[Mapping[str, Any]], key: PublicKey | None
) -> list[str]:
    faults = [] if len(images) == 2 else [f"{len(images)} architectures"]
    faults += unsigned(registry, index, key, ())
    return faults + [text for one in images for text in lacking(registry, one["digest"], key)]


def lacking(registry: Registry, digest: str, key: PublicKey | None = None) -> list[str]:
    """The blobs and the proof that an image lacks; of the proof, also that a key signed it."""
    is_there = functools.cache(registry.has_blob)
    found = [f"no {blob}" for blob in blobs_of(registry.manifest(digest)) if not is_there(blob)]
    referring = registry.referrers(digest)
    kinds = sorted(one.artifact_type for one in referring)
    if kinds != sorted([SIF, TARBALL, *(_SIGNED if key else _UNSIGNED)]):
        found.append(f"proof: {kinds}")
    for one in referring:
        content = registry.manifest(one)
        assert json.loads(content)["subject"]["digest"] == digest
        found += [f"no {blob} of proof" for blob in blobs_of(content) if not is_there(blob)]
    return found + unsigned(registry, digest, key, STATEMENTS)


def unsigned(
    registry: Registry, digest: str, key: PublicKey | None, statements: Sequence[str]
) -> list[str]:
    """What a key has not signed of a digest, in either of the two formats.

    A classic signature names the registry: one that was written to by two names may have two.
    """
    if key is None:
        return []
    trusted, now = [TrustedKey(key=key, name="site")], dt.datetime.now(dt.timezone.utc)
    found = verified(digest, attached(registry, digest), trusted, now=now)
    lines = [f"{one.source}: {one.reason}" for one in found.rejected]
    for form in ("bundle", "classic"):
        signed = [one.format for one in found.signatures].count(form)
        kinds = [one.predicate_type for one in found.attestations if one.format == form]
        if not signed or sorted(kinds) != sorted(statements):
            lines.append(f"{form}: {signed} signatures, statements {kinds}")
    return lines


def attached(registry: Registry, digest: str) -> Iterator[ProofManifest]:
    """What refers to a digest, and what is under the tags of its proof."""
    tags = (signature_tag(digest), attestation_tag(digest))
    for name in (*(referrer.digest for referrer in registry.referrers(digest)), *tags):
        with contextlib.suppress(NotFound):
            descriptor, manifest = registry.read(name)
            document = registry.document_of(descriptor, manifest)
            layers = manifests.descriptors(document, "layers", name)
            some = [one for one in layers if one.media_type not in (SIF, TARBALL)]
            blobs = {one.digest: registry.small_blob(one) for one in some}
            tag = name if name in tags else ""
            yield ProofManifest(manifest=manifest, blobs=blobs, tag=tag)


def blobs_of(manifest: bytes) -> list[str]:
    parsed: dict[str, Any] = json.loads(manifest)
    return [one["digest"] for one in (parsed["config"], *parsed["layers"])]


def under(registry: Registry, index: str) -> frozenset[str]:
    """The digests of all of a release that is there: images, blobs, and what refers to them."""
    _, parsed = registry.document(index)
    found: set[str] = set()
    for digest in (index, *(one["digest"] for one in parsed["manifests"])):
        named = [one.digest for one in registry.referrers(digest)]
        for name in (digest, *named, signature_tag(digest), attestation_tag(digest)):
            with contextlib.suppress(NotFound):
                there, manifest = registry.document(name)
                blobs = [one.digest for one in manifests.blobs_of(manifest, name)]
                found |= {there.digest, *(one for one in blobs if registry.has_blob(one))}
    return frozenset(found)
