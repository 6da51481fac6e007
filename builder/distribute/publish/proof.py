"""The choice of proof for releases: signed with a key, or unsigned.

What signs is slow to import, so that it is imported if a key is named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.distribute.publish.failing import Attest
from builder.distribute.publish.publisher import Prove
from builder.distribute.publish.releases import Ready, Release
from builder.model.predicates import UNSIGNED_NOTE
from builder.registry import Descriptor, Source
from builder.registry.manifests import CYCLONEDX, INDEX, STATEMENT, referrer
from builder.system.process import Processes


def prove_with(key: str, releases: Sequence[Release], processes: Processes) -> Prove:
    """Return what makes the proof: signed with a key, if one is named."""
    if not key:
        return unsigned
    from builder.distribute.publish.signatures import signed  # noqa: PLC0415

    return signed(key, releases, processes)


def attest_with(key: str, processes: Processes) -> Attest:
    """Return what makes the evidence of failures: signed with a key, if one is named."""
    if not key:
        return unsigned_statements
    from builder.distribute.publish.signatures import attesting  # noqa: PLC0415

    return attesting(key, processes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """A manifest, and the blobs that it names by their digests."""

    manifest: bytes
    blobs: Mapping[str, bytes]
    tag: str = ""
    replaces: tuple[str, ...] = ()
    fresh: bool = False

    def merged(self, manifest: bytes) -> Attachment | None:
        """Nothing of this has a tag."""
        raise NotImplementedError


def unsigned(source: Source, image: Descriptor, images: Sequence[Ready]) -> list[Attachment]:
    """The statements of an image and its bill, one manifest each; nothing for an index."""
    if image.media_type == INDEX:
        return []
    [ready] = images
    statements = unsigned_statements(source, image, ready.statements, ready.proven)
    return [*statements, _attachment(ready.bill, image, CYCLONEDX, {})]


def unsigned_statements(
    _source: Source, image: Descriptor, statements: Sequence[bytes], _created: str
) -> list[Attachment]:
    """Statements about an image, one manifest each."""
    kinds = [str(json.loads(statement)["predicateType"]) for statement in statements]
    return [
        _attachment(statement, image, STATEMENT, {UNSIGNED_NOTE: kind})
        for statement, kind in zip(statements, kinds, strict=True)
    ]


def _attachment(
    content: bytes, image: Descriptor, kind: str, notes: Mapping[str, str]
) -> Attachment:
    layer = Descriptor.of(content, kind)
    manifest = referrer(layer, image, artifact_type=kind, annotations=notes)
    return Attachment(manifest=manifest, blobs={layer.digest: content})
