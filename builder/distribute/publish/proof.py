"""Proof of published images: signatures, evidence, bill of materials, provenance; signed or not.

A key is a file, `env://NAME`, or a reference that cosign understands. `keyless` stands for the
identity of a CI system's job.

Proof is attached to an image by `subject`, or under cosign's tags. A registry has no atomic update
of a tag: two clients that write a tag at the same time overwrite each other's proof. So our proof
is merged with that under a tag until a read shows that it persists; this is checked again before
any tag of a release is set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from builder.distribute.publish.releases import ReadyImage, ReadyRelease
from builder.distribute.pull.proof import attachments_of
from builder.model.digests import digest_of
from builder.model.errors import Refused
from builder.model.predicates import UNSIGNED_NOTE
from builder.registry import INDEX, MANIFEST, Descriptor, NotFound, Registry, RegistryFailed, Source
from builder.registry.failures import Transient
from builder.registry.manifests import CYCLONEDX, EMPTY_CONTENT, STATEMENT, referrer
from builder.system.home import Home
from builder.system.process import Processes
from builder.trust.proof.attachments import ProofManifest
from builder.trust.proof.attestations import attestations, merged, proofs
from builder.trust.proof.cosign import KEYLESS, PKCS11, keyless_attestations, signer_of
from builder.trust.proof.existing import ExistingProof
from builder.trust.proof.keys import Signer
from builder.trust.proof.statements import signature_statement, statements_of

# Makes the proof of an image, or of an index with its images; the source may already have some.
Prove: TypeAlias = "Callable[[Source, Descriptor, Sequence[ReadyImage]], Sequence[ProofManifest]]"
# Attests statements about an image, but not the image; the last argument is a time, ISO 8601.
Attest: TypeAlias = "Callable[[Source, Descriptor, Sequence[bytes], str], Sequence[ProofManifest]]"


def prove_with(key: str, releases: Sequence[ReadyRelease], processes: Processes) -> Prove:
    """Return a function that makes the proof of releases, signed if `key` is not empty.

    All statements are made here, so that faults in them are found before anything is sent.
    Raises `BadInput` for a malformed key or statement.
    """
    if not key:
        return unsigned
    attest = _signing(key, processes, signs_image=True)
    statements = {
        image.planned.identifier: statements_of(image.folder, image.record)
        for release in releases
        for image in release.images
    }

    def prove(
        registry: Source, image: Descriptor, images: Sequence[ReadyImage]
    ) -> Sequence[ProofManifest]:
        own = () if image.media_type == INDEX else statements[images[0].planned.identifier]
        return attest(registry, image, own, max(image.proven for image in images))

    return prove


def attest_with(key: str, processes: Processes) -> Attest:
    """Return a function that attests statements about an image, signed if `key` is not empty."""
    return _signing(key, processes, signs_image=False) if key else _unsigned_statements


def _signing(key: str, processes: Processes, *, signs_image: bool) -> Attest:
    """Return a function that signs statements about an image, and the image if `signs_image`."""
    path = Home.of_environment().search_path()
    signer: Signer | None = None  # None: the identity of a CI job signs
    if key.startswith(PKCS11):  # the cosign from set-up was built without PKCS #11
        path = os.pathsep.join(filter(None, [os.environ.get("PATH"), path]))
    if key != KEYLESS:
        signer = signer_of(key, os.environ, processes, path=path)

    def attest(
        registry: Source, image: Descriptor, statements: Sequence[bytes], created: str
    ) -> tuple[ProofManifest, ...]:
        if signer is None:
            signature = (signature_statement(image.digest),) if signs_image else ()
            own = (*signature, *statements)
            return keyless_attestations(image, own, processes, created=created, path=path)
        make: Callable[..., tuple[ProofManifest, ...]] = partial(attestations, created=created)
        if signs_image:
            make = partial(proofs, reference=registry.name, created=created)
        return _new_attachments(partial(make, image), registry, image, statements, signer)

    return attest


def _new_attachments(
    make: Callable[..., tuple[ProofManifest, ...]],
    registry: Source,
    image: Descriptor,
    statements: Sequence[bytes],
    signer: Signer,
) -> tuple[ProofManifest, ...]:
    """Return the attachments that an image lacks; the last one replaces older ones."""
    attached = attachments_of(registry, image.digest)
    existing = ExistingProof(image.digest, attached, signer.public)
    new = existing.new_statements(statements)
    return tuple(existing.completed(make(new, signer, before=existing.tagged), statements))


def unsigned(
    source: Source, image: Descriptor, images: Sequence[ReadyImage]
) -> list[ProofManifest]:
    """Return one manifest for each statement of an image and for its bill; none for an index."""
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


# ---- To a registry ----

_EMPTY = digest_of(EMPTY_CONTENT)
_AGAIN = "run the same command again"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttachedProof:
    """Attachments of an image or an index: proof under tags, and manifests with a subject."""

    registry: Registry
    digest: str
    tagged: Sequence[ProofManifest]
    referring: Sequence[bytes]


def attach(
    registry: Registry,
    digest: str,
    prove: Callable[[], Sequence[ProofManifest]],
    files: Sequence[bytes] = (),
) -> AttachedProof:
    """Attach files and proof to an image or an index, and check that the registry lists them.

    Proof under a tag includes older proof, so `prove` is called only while the lock is held.
    """
    with proof_lock(registry, digest):
        proof = prove()
        _send_blobs(registry, proof)
        tagged = [attached for attached in proof if attached.tag]
        for attached in tagged:
            _write_merged(registry, attached)
        referring = [*files, *(attached.manifest for attached in proof if not attached.tag)]
        check_listed(registry, digest, registry.attach_all(referring))
        if replaced := {digest for attached in proof for digest in attached.replaces}:
            registry.detach(digest, replaced)
    return AttachedProof(registry=registry, digest=digest, tagged=tagged, referring=referring)


def is_settled(proven: AttachedProof) -> bool:
    """Return whether the registry still has all attachments; attach overwritten ones again.

    Raises `RegistryFailed` if other clients keep overwriting them.
    """
    registry = proven.registry
    with proof_lock(registry, proven.digest):
        written = [attached for attached in proven.tagged if _write_merged(registry, attached)]
        listed = _listed(registry, proven.digest) if proven.referring else set()
        lost = [manifest for manifest in proven.referring if digest_of(manifest) not in listed]
        if lost:
            check_listed(registry, proven.digest, registry.attach_all(lost))
    return not (written or lost)


def _send_blobs(registry: Registry, proof: Sequence[ProofManifest]) -> None:
    sent: set[str] = set()
    for attached in proof:
        for blob in attached.blobs.keys() - sent:
            missing = attached.fresh and blob != _EMPTY  # the empty blob is in every bundle
            registry.write_blob(attached.blobs[blob], digest=blob, missing=missing)
        sent.update(attached.blobs)


def _write_merged(registry: Registry, proof: ProofManifest) -> bool:
    """Merge proof with that under its tag; return whether anything was written."""
    retries, written = registry.transport.retries(), 0
    while True:
        current = read_or_none(registry, proof.tag)
        complete = merged(proof, current[1] if current else b"")
        if complete is None:
            return bool(written)
        if written:
            retries.wait(Transient(overwritten(registry, proof.tag)))
        for blob in complete.blobs.keys() - proof.blobs.keys():  # a config of all layers
            registry.write_blob(complete.blobs[blob], digest=blob)
        registry.write_manifest(complete.manifest, MANIFEST, proof.tag)
        written += 1


def read_or_none(source: Source, target: str) -> tuple[Descriptor, bytes] | None:
    """Return a manifest's descriptor and its bytes; None if it is missing."""
    try:
        return source.read(target)
    except NotFound:
        return None


def proof_lock(registry: Registry, digest: str) -> AbstractContextManager[None]:
    """Lock the tags of an image's proof against other clients of this machine."""
    return registry.transport.write_lock(f"the proof of {registry.name}@{digest}")


def overwritten(registry: Registry, tag: str) -> RegistryFailed:
    """Return the error for proof that is no longer under its tag."""
    problem = "another client overwrote this proof; no tag was set"
    return RegistryFailed(f"{registry.name}:{tag}: {problem}", hint=_AGAIN)


def check_listed(registry: Registry, digest: str, attached: Sequence[Descriptor]) -> None:
    """Raise `Refused` unless the registry lists everything that was attached."""
    listed = _listed(registry, digest) if attached else set()
    if lost := [descriptor.digest for descriptor in attached if descriptor.digest not in listed]:
        raise Refused(
            f"{registry.name}@{digest}: the registry does not list what was attached: "
            f"{', '.join(lost)}; no tag was set",
            hint=_AGAIN,
        )


def _listed(registry: Registry, digest: str) -> set[str]:
    return {descriptor.digest for descriptor in registry.referrers(digest)}
