"""What a registry has of the releases that were made for tests, and what it lacks of them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.model.predicates import CYCLONEDX as BILL
from builder.model.predicates import SLSA, TEST_RESULT
from builder.registry import Credentials, NotThere, Reference, Registry, connect, manifests
from builder.registry.manifests import CYCLONEDX, SIF, STATEMENT, TARBALL
from builder.trust.proof.attachments import BUNDLE, ProofManifest
from builder.trust.proof.attestations import attestation_tag, signature_tag
from builder.trust.proof.keys import PublicKey, boxed, generated
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
    made, private, public = generated(), folder / "site.key", folder / "site.pub"
    private.write_bytes(boxed(made, b""))
    private.chmod(0o600)
    public.write_bytes(made.public.pem)
    return Pair(private=private, public=public, key=made.public)


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
        for tag in sorted(own_tags(registry)):
            index, parsed = registry.document(tag)
            some = parsed["manifests"]
            found += [] if len(some) == 2 else [f"{tag}: {len(some)} architectures"]
            found += [f"{tag}: {text}" for text in unsigned(registry, index.digest, key, ())]
            for one in some:
                found += [f"{tag}: {text}" for text in lacking(registry, one["digest"], key)]
    return found


def lacking(registry: Registry, digest: str, key: PublicKey | None = None) -> list[str]:
    """The blobs and the proof that an image lacks; of the proof, also that a key signed it."""
    found = [f"no {blob}" for blob in blobs_of(registry, digest) if not registry.has_blob(blob)]
    referring = registry.referrers(digest)
    kinds = sorted(one.artifact_type for one in referring)
    if kinds != sorted([SIF, TARBALL, *(_SIGNED if key else _UNSIGNED)]):
        found.append(f"proof: {kinds}")
    for one in referring:
        assert json.loads(registry.manifest(one))["subject"]["digest"] == digest
        found += [
            f"no {blob} of proof"
            for blob in blobs_of(registry, one.digest)
            if not registry.has_blob(blob)
        ]
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
    found = verified(digest, _attached(registry, digest), trusted, now=now)
    lines = [f"{one.source}: {one.reason}" for one in found.rejected]
    for form in ("bundle", "classic"):
        signed = [one.format for one in found.signatures].count(form)
        kinds = [one.predicate_type for one in found.attestations if one.format == form]
        if not signed or sorted(kinds) != sorted(statements):
            lines.append(f"{form}: {signed} signatures, statements {kinds}")
    return lines


def _attached(registry: Registry, digest: str) -> Iterator[ProofManifest]:
    """What refers to a digest, and what is under the tags of its proof."""
    named = [one.digest for one in registry.referrers(digest)]
    for name in (*named, signature_tag(digest), attestation_tag(digest)):
        with contextlib.suppress(NotThere):
            _, manifest = registry.document(name)
            layers = manifests.descriptors(manifest, "layers", name)
            some = [one for one in layers if one.media_type not in (SIF, TARBALL)]
            blobs = {one.digest: registry.small_blob(one) for one in some}
            yield ProofManifest(manifest=registry.manifest(name), blobs=blobs)


def blobs_of(registry: Registry, digest: str) -> list[str]:
    parsed: dict[str, Any] = json.loads(registry.manifest(digest))
    return [one["digest"] for one in (parsed["config"], *parsed["layers"])]


def under(registry: Registry, index: str) -> frozenset[str]:
    """The digests of all of a release that is there: images, blobs, and what refers to them."""
    _, parsed = registry.document(index)
    found: set[str] = set()
    for digest in (index, *(one["digest"] for one in parsed["manifests"])):
        named = [one.digest for one in registry.referrers(digest)]
        for name in (digest, *named, signature_tag(digest), attestation_tag(digest)):
            with contextlib.suppress(NotThere):
                there, manifest = registry.document(name)
                blobs = [one.digest for one in manifests.blobs_of(manifest, name)]
                found |= {there.digest, *(one for one in blobs if registry.has_blob(one))}
    return frozenset(found)
