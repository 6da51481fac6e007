"""The signed proof of what is published: signatures, evidence, bill and provenance, by one key."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from builder.distribute.publish.failing import Attest
from builder.distribute.publish.publisher import Prove
from builder.distribute.publish.releases import Ready, Release
from builder.distribute.pull.proof import attachments_of
from builder.registry import INDEX, Descriptor, Source
from builder.system.home import Home
from builder.system.process import Processes
from builder.trust.proof.attachments import BlobDescriptor, ProofManifest
from builder.trust.proof.attestations import attestations, proofs
from builder.trust.proof.cosign import KEYLESS, PKCS11, keyless_attestations, signer_of
from builder.trust.proof.existing import ExistingProof
from builder.trust.proof.keys import Signer
from builder.trust.proof.manifests import statements_of
from builder.trust.proof.statements import builder_of, signature_statement


def signed(key: str, releases: Sequence[Release], processes: Processes) -> Prove:
    """Makes the proof of releases with a key: a file, `env://NAME`, or what cosign understands.

    The word `keyless` stands for the identity of a CI system's job. All statements are made at
    once, so that what cannot be proven is known before anything is sent. Raises `BadInput` for a
    key or a statement that is none.
    """
    path, signer = _signer(key, processes)
    statements = {
        image.identifier: _statements(image) for release in releases for image in release.images
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
        return _added(make, registry, image, own, signer)

    return prove


def attesting(key: str, processes: Processes) -> Attest:
    """Signs statements about images with a key, as `signed` does, and not the images."""
    path, signer = _signer(key, processes)

    def attest(
        registry: Source, image: Descriptor, statements: Sequence[bytes], created: str
    ) -> tuple[ProofManifest, ...]:
        subject = _subject(image)
        if signer is None:
            return keyless_attestations(subject, statements, processes, created=created, path=path)
        make = partial(attestations, subject, created=created)
        return _added(make, registry, image, statements, signer)

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


def _statements(image: Ready) -> tuple[bytes, ...]:
    return statements_of(image.folder, image.record, builder_id=builder_of(os.environ))


def _added(
    make: Callable[..., tuple[ProofManifest, ...]],
    registry: Source,
    image: Descriptor,
    statements: Sequence[bytes],
    signer: Signer,
) -> tuple[ProofManifest, ...]:
    """Make the attestations of a key that an image lacks; the last one replaces older ones."""
    attached = attachments_of(registry, image.digest)
    existing = ExistingProof(image.digest, attached, signer.public)
    new, before = existing.new_statements(statements), existing.before(statements)
    needed = existing.needed(make(new, signer, before=before))
    if not needed:
        return ()
    *others, last = [replace(proof, fresh=not attached) for proof in needed]
    return (*others, replace(last, replaces=existing.replaced(statements)))
