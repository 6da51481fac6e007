"""Proof of published images: signatures, evidence, bill and provenance, by one key; or unsigned.

A key is a file, `env://NAME`, or what cosign understands; `keyless` stands for the identity of a
CI system's job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from builder.distribute.publish.releases import Ready, ReadyRelease
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
from builder.trust.proof.manifests import statements_of
from builder.trust.proof.statements import builder_of, signature_statement

# Makes the proof of an image, or of an index with all of its images; the source may have some.
Prove: TypeAlias = "Callable[[Source, Descriptor, Sequence[Ready]], Sequence[ProofManifest]]"
# Attests statements about an image, and not the image; the last is a time, ISO 8601.
Attest: TypeAlias = "Callable[[Source, Descriptor, Sequence[bytes], str], Sequence[ProofManifest]]"


def prove_with(key: str, releases: Sequence[ReadyRelease], processes: Processes) -> Prove:
    """Return what makes the proof of releases, signed with a key if one is named.

    All statements are made at once, so that what cannot be proven is known before anything is sent.
    Raises `BadInput` for a malformed key or statement.
    """
    if not key:
        return unsigned
    attest = _signing(key, processes, signs_image=True)
    statements = {
        image.planned.identifier: statements_of(
            image.folder, image.record, builder_id=builder_of(os.environ)
        )
        for release in releases
        for image in release.images
    }

    def prove(
        registry: Source, image: Descriptor, images: Sequence[Ready]
    ) -> Sequence[ProofManifest]:
        own = () if image.media_type == INDEX else statements[images[0].planned.identifier]
        return attest(registry, image, own, max(image.proven for image in images))

    return prove


def attest_with(key: str, processes: Processes) -> Attest:
    """Return what attests statements about an image, signed with a key if one is named."""
    return _signing(key, processes, signs_image=False) if key else _unsigned_statements


def _signing(key: str, processes: Processes, *, signs_image: bool) -> Attest:
    """Return what signs statements about an image, and the image itself if that is wanted."""
    path = Home.of_environment().search_path()
    signer: Signer | None = None  # the identity of a job
    if key.startswith(PKCS11):  # the cosign that set-up fetches was built without
        path = os.pathsep.join(filter(None, [os.environ.get("PATH"), path]))
    if key != KEYLESS:
        signer = signer_of(key, os.environ, processes, path=path)

    def attest(
        registry: Source, image: Descriptor, statements: Sequence[bytes], created: str
    ) -> tuple[ProofManifest, ...]:
        subject = BlobDescriptor(media_type=image.media_type, digest=image.digest, size=image.size)
        if signer is None:
            signature = (signature_statement(image.digest),) if signs_image else ()
            own = (*signature, *statements)
            return keyless_attestations(subject, own, processes, created=created, path=path)
        make: Callable[..., tuple[ProofManifest, ...]] = partial(attestations, created=created)
        if signs_image:
            make = partial(proofs, reference=registry.name, created=created)
        return _new_attachments(partial(make, subject), registry, image, statements, signer)

    return attest


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
    new, before = existing.new_statements(statements), existing.before(statements)
    needed = existing.needed(make(new, signer, before=before))
    if not needed:
        return ()
    *others, last = [replace(proof, fresh=not attached) for proof in needed]
    return (*others, replace(last, replaces=existing.replaced(statements)))


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
