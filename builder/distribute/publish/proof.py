"""Proof of published images: signatures, evidence, bill and provenance, by one key; or unsigned.

A key is a file, `env://NAME`, or what cosign understands; `keyless` stands for the identity of a
CI system's job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from builder.distribute.publish.releases import Ready, Release
from builder.distribute.pull.proof import attachments_of
from builder.model.predicates import UNSIGNED_NOTE
from builder.registry import Descriptor, Source
from builder.registry.manifests import CYCLONEDX, INDEX, STATEMENT, referrer
from builder.system.home import Home
from builder.system.process import Processes
from builder.trust.proof.attachments import BlobDescriptor, ProofManifest
from builder.trust.proof.attestations import attestations, proofs
from builder.trust.proof.cosign import KEYLESS, PKCS11, keyless_attestations, signer_of
from builder.trust.proof.existing import ExistingProof
from builder.trust.proof.keys import Signer
from builder.trust.proof.statements import builder_of, signature_statement, statements_of

# Makes the proof of an image, or of an index with all of its images; the source may have some.
Prove: TypeAlias = "Callable[[Source, Descriptor, Sequence[Ready]], Sequence[ProofManifest]]"
# Attests statements about an image, and not the image; the last is a time, ISO 8601.
Attest: TypeAlias = "Callable[[Source, Descriptor, Sequence[bytes], str], Sequence[ProofManifest]]"


def prove_with(key: str, releases: Sequence[Release], processes: Processes) -> Prove:
    """Return what makes the proof of releases, signed with a key if one is named.

    All statements are made at once, so that what cannot be proven is known before anything is sent.
    Raises `BadInput` for a malformed key or statement.
    """
    if not key:
        return unsigned
    path, signer = _signer(key, processes)
    statements = {
        image.identifier: statements_of(
            image.folder, image.record, builder_id=builder_of(os.environ)
        )
        for release in releases
        for image in release.images
    }

    def prove(
        registry: Source, image: Descriptor, images: Sequence[Ready]
    ) -> tuple[ProofManifest, ...]:
        own = () if image.media_type == INDEX else statements[images[0].identifier]
        subject = _subject(image)
        created = max(image.proven for image in images)
        if signer is None:
            own = (signature_statement(image.digest), *own)
            return keyless_attestations(subject, own, processes, created=created, path=path)
        make = partial(proofs, subject, reference=registry.name, created=created)
        return _new_attachments(make, registry, image, own, signer)

    return prove


def attest_with(key: str, processes: Processes) -> Attest:
    """Return what attests statements about an image, signed with a key if one is named."""
    if not key:
        return _unsigned_statements
    path, signer = _signer(key, processes)

    def attest(
        registry: Source, image: Descriptor, statements: Sequence[bytes], created: str
    ) -> tuple[ProofManifest, ...]:
        subject = _subject(image)
        if signer is None:
            return keyless_attestations(subject, statements, processes, created=created, path=path)
        make = partial(attestations, subject, created=created)
        return _new_attachments(make, registry, image, statements, signer)

    return attest


def _signer(key: str, processes: Processes) -> tuple[str, Signer | None]:
    """Return the PATH for programs, and the signer: None for the identity of a job."""
    path = Home.of_environment().search_path()
    if key == KEYLESS:
        return path, None
    if key.startswith(PKCS11):  # the cosign that set-up fetches was built without
        path = os.pathsep.join(filter(None, [os.environ.get("PATH"), path]))
    return path, signer_of(key, os.environ, processes, path=path)


def _subject(image: Descriptor) -> BlobDescriptor:
    return BlobDescriptor(media_type=image.media_type, digest=image.digest, size=image.size)


def _new_attachments(
    make: Callable[..., tuple[ProofManifest, ...]],
    registry: Source,
    image: Descriptor,
    statements: Sequence[bytes],
    signer: Signer,
) -> tuple[ProofManifest, ...]:
    """Make the attachments that an image lacks; the last one replaces older ones."""
    attached = attachments_of(registry, image.digest)
    existing = ExistingProof(image.digest, attached, signer.public)
    new = existing.new_statements(statements)
    return tuple(existing.completed(make(new, signer, before=existing.tagged), statements))


def unsigned(source: Source, image: Descriptor, images: Sequence[Ready]) -> list[ProofManifest]:
    """Return the statements of an image and its bill, one manifest each; none for an index."""
    if image.media_type == INDEX:
        return []
    [ready] = images
    statements = _unsigned_statements(source, image, ready.statements, ready.proven)
    return [*statements, _attachment(ready.bill, image, CYCLONEDX, {})]


def _unsigned_statements(
    _source: Source, image: Descriptor, statements: Sequence[bytes], _created: str
) -> list[ProofManifest]:
    return [
        _attachment(
            statement,
            image,
            STATEMENT,
            {UNSIGNED_NOTE: str(json.loads(statement)["predicateType"])},
        )
        for statement in statements
    ]


def _attachment(
    content: bytes, image: Descriptor, kind: str, notes: Mapping[str, str]
) -> ProofManifest:
    layer = Descriptor.of(content, kind)
    manifest = referrer(layer, image, artifact_type=kind, annotations=notes)
    return ProofManifest(manifest=manifest, blobs={layer.digest: content})
