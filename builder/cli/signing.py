"""The signed proof of what is published: signatures, evidence, bill and provenance, by one key."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from builder.errors import Refused
from builder.home import Home
from builder.process import Processes
from builder.proof import (
    Attachment,
    Signer,
    attestation_tag,
    builder_of,
    proofs,
    signature_tag,
    signer_of,
    statements_of,
)
from builder.proof import Descriptor as Subject
from builder.publish import Prove, Ready, Release
from builder.registry import INDEX, Descriptor, NotThere, Registry


def signed(key: str, releases: Sequence[Release]) -> Prove:
    """Makes the proof of releases with a key: a file, `env://NAME`, or what cosign understands.

    All statements are made at once, so that what cannot be proven is known before anything is
    sent. Raises `BadInput` for a key or a statement that is none.
    """
    home = Home.of_environment()
    signer = signer_of(key, os.environ, Processes(), path=home.search_path())
    statements = {
        one.identifier: _statements(one) for release in releases for one in release.images
    }

    def prove(
        registry: Registry, image: Descriptor, images: Sequence[Ready]
    ) -> tuple[Attachment, ...]:
        own = () if image.media_type == INDEX else statements[images[0].identifier]
        return _proofs(registry, image, own, signer, max(one.proven for one in images))

    return prove


def _statements(image: Ready) -> tuple[bytes, ...]:
    found = statements_of(image.folder, image.record, builder_id=builder_of(os.environ))
    if not set(image.statements) <= set(found):
        raise Refused(
            f"{image.identifier}: its evidence changed while it was being published",
            hint="run the same command again",
        )
    return found


def _proofs(
    registry: Registry,
    image: Descriptor,
    statements: Sequence[bytes],
    signer: Signer,
    created: str,
) -> tuple[Attachment, ...]:
    subject = Subject(media_type=image.media_type, digest=image.digest, size=image.size)
    return proofs(
        subject,
        statements,
        signer,
        reference=registry.name,
        created=created,
        before=_there(registry, image.digest),
    )


def _there(registry: Registry, digest: str) -> Mapping[str, Attachment]:
    """What the registry has in the classic format, by tag: it is added to."""
    found = {}
    for tag in (signature_tag(digest), attestation_tag(digest)):
        try:
            found[tag] = Attachment(manifest=registry.manifest(tag), blobs={}, tag=tag)
        except NotThere:
            continue
    return found
