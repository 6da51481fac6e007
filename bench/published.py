"""What a registry has of the releases that were made for tests, and what it lacks of them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from builder.proof.making import attestation_tag, signature_tag
from builder.registry import Credentials, NotThere, Reference, Registry, connect
from builder.registry import source as manifests
from builder.registry.kinds import CYCLONEDX, SIF, STATEMENT, TARBALL

RECIPES = ("tools", "app")
TAG = "1.0-sample"


def repository(host: str, recipe: str, namespace: str = "site") -> Registry:
    return connect(Reference.parse(f"{host}/{namespace}/{recipe}"), Credentials(files=()))


def own_tags(registry: Registry) -> set[str]:
    """The tags that people pull by."""
    return {tag for tag in registry.tags() if not tag.startswith("sha256-")}


def unproven(host: str, namespace: str = "site") -> list[str]:
    """What is under a tag and should not be: not there, or without its proof."""
    found: list[str] = []
    for recipe in RECIPES:
        registry = repository(host, recipe, namespace)
        for tag in sorted(own_tags(registry)):
            manifests = registry.document(tag)[1]["manifests"]
            found += [] if len(manifests) == 2 else [f"{tag}: {len(manifests)} architectures"]
            for one in manifests:
                found += [f"{tag}: {text}" for text in lacking(registry, one["digest"])]
    return found


def lacking(registry: Registry, digest: str) -> list[str]:
    """The blobs and the proof that an image lacks."""
    found = [f"no {blob}" for blob in blobs_of(registry, digest) if not registry.has_blob(blob)]
    referring = registry.referrers(digest)
    kinds = sorted(one.artifact_type for one in referring)
    if kinds != sorted([SIF, TARBALL, CYCLONEDX, STATEMENT, STATEMENT, STATEMENT]):
        found.append(f"proof: {kinds}")
    for one in referring:
        assert json.loads(registry.manifest(one))["subject"]["digest"] == digest
        found += [
            f"no {blob} of proof"
            for blob in blobs_of(registry, one.digest)
            if not registry.has_blob(blob)
        ]
    return found


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
