"""The signed proof of what is published: signatures, evidence, bill and provenance, by one key."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from builder.distribute.publish import Attest, Prove, Ready, Release
from builder.distribute.pull.proving import attachments_of
from builder.registry import INDEX, Descriptor, Source
from builder.system.home import Home
from builder.system.process import Processes
from builder.trust.proof import (
    Attachment,
    Signer,
    Standing,
    attestations,
    builder_of,
    keyless_attestations,
    keyless_proofs,
    proofs,
    signer_of,
    statements_of,
)
from builder.trust.proof import Descriptor as Subject
from builder.trust.proof.keyless import KEYLESS
from builder.trust.proof.signers import PKCS11


def signed(key: str, releases: Sequence[Release], processes: Processes) -> Prove:
    """Makes the proof of releases with a key: a file, `env://NAME`, or what cosign understands.

    The word `keyless` stands for the identity of a CI system's job. All statements are made at
    once, so that what cannot be proven is known before anything is sent. Raises `BadInput` for a
    key or a statement that is none.
    """
    path, signer = _signer(key, processes)
    statements = {
        one.identifier: _statements(one) for release in releases for one in release.images
    }

    def prove(
        registry: Source, image: Descriptor, images: Sequence[Ready]
    ) -> tuple[Attachment, ...]:
        own = () if image.media_type == INDEX else statements[images[0].identifier]
        subject = _subject(image)
        created = max(one.proven for one in images)
        if signer is None:
            return keyless_proofs(subject, own, processes, created=created, path=path)
        make = partial(proofs, subject, reference=registry.name, created=created)
        return _added(make, registry, image, own, signer)

    return prove


def attesting(key: str, processes: Processes) -> Attest:
    """Signs statements about images with a key, as `signed` does, and not the images."""
    path, signer = _signer(key, processes)

    def attest(
        registry: Source, image: Descriptor, statements: Sequence[bytes], created: str
    ) -> tuple[Attachment, ...]:
        subject = _subject(image)
        if signer is None:
            return keyless_attestations(subject, statements, processes, created=created, path=path)
        make = partial(attestations, subject, created=created)
        return _added(make, registry, image, statements, signer)

    return attest


def _signer(key: str, processes: Processes) -> tuple[str, Signer | None]:
    """Where programs are looked for, and what signs: None for the identity of a job."""
    path = Home.of_environment().search_path()
    if key == KEYLESS:
        return path, None
    if key.startswith(PKCS11):  # the cosign that set-up fetches was built without
        path = os.pathsep.join(filter(None, [os.environ.get("PATH"), path]))
    return path, signer_of(key, os.environ, processes, path=path)


def _subject(image: Descriptor) -> Subject:
    return Subject(media_type=image.media_type, digest=image.digest, size=image.size)


def _statements(image: Ready) -> tuple[bytes, ...]:
    return statements_of(image.folder, image.record, builder_id=builder_of(os.environ))


def _added(
    make: Callable[..., tuple[Attachment, ...]],
    registry: Source,
    image: Descriptor,
    statements: Sequence[bytes],
    signer: Signer,
) -> tuple[Attachment, ...]:
    """What a key has not said yet of an image; the last of it replaces what is older."""
    attached = attachments_of(registry, image.digest)
    standing = Standing.of(image.digest, attached, signer.public)
    news, before = standing.news(statements), standing.before(statements)
    made = standing.needed(make(news, signer, before=before))
    if not made:
        return ()
    *others, last = [replace(one, fresh=not attached) for one in made]
    return (*others, replace(last, replaces=standing.replaced(statements)))
