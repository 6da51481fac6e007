"""Proof as manifests that can be pushed: in the classic format and as Sigstore bundles.

classic  signatures at the tag `sha256-<hex>.sig`, attestations at `sha256-<hex>.att`, one layer for
         each; what containers/image's policy.json sees (`use-sigstore-attachments`).
         https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
bundle   a manifest for each, which names the image as its subject; what cosign makes since 3.0.
         https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md

Both are made of the same signatures: `guesses` says what of the one follows from the other. A short
bundle stands in its manifest, too, so that who reads it asks once
(https://github.com/opencontainers/image-spec/blob/v1.1.0/descriptor.md#embedded-content). With the
same key and statements the same bytes come out, so that publishing again adds nothing.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from builder.model.digests import digest_of
from builder.model.errors import BadInput, Refused
from builder.model.predicates import BUNDLE_NOTE, CLASSIC_NOTE
from builder.trust.proof import attachments
from builder.trust.proof.attachments import (
    BUNDLE,
    CONFIG,
    CONTAINER_SIGNATURE,
    DSSE,
    MANIFEST,
    MAX_LAYERS,
    SIGNATURE_NOTE,
    SIMPLE_SIGNING,
    Attachment,
    Descriptor,
    Unusable,
)
from builder.trust.proof.keys import PublicKey, Signer
from builder.trust.proof.manifests import layers_of
from builder.trust.proof.statements import (
    Envelope,
    as_bytes,
    sealed_envelope,
    signature_statement,
    statement_of,
)

EMPTY = "application/vnd.oci.empty.v1+json"
_SHORT = 1 << 16  # bytes; a manifest may have 4 MiB
CREATED = "org.opencontainers.image.created"


def signature_tag(digest: str) -> str:
    """Return where the classic format keeps the signatures of an image, `sha256:…`."""
    return f"{digest.replace(':', '-')}.sig"


def attestation_tag(digest: str) -> str:
    """Return where the classic format keeps the attestations of an image."""
    return f"{digest.replace(':', '-')}.att"


def proofs(
    image: Descriptor,
    statements: Sequence[bytes],
    signer: Signer,
    *,
    reference: str,
    created: str,
    before: Mapping[str, Attachment] | None = None,
) -> tuple[Attachment, ...]:
    """An image's signature and the attestations of some statements, in both formats.

    `reference` is the image's name (`registry/repository`, with a tag or without); the classic
    signature states it. For the rest, see `attestations`.
    """
    made = attestations(image, statements, signer, created=created, before=before)
    signature = sealed_envelope(signature_statement(image.digest), signer)
    there = (before or {}).get(signature_tag(image.digest))
    return (
        _bundle_of(image, signature, signer, created),
        classic_signature(image.digest, reference, signer, before=there),
        *made,
    )


def attestations(
    image: Descriptor,
    statements: Sequence[bytes],
    signer: Signer,
    *,
    created: str,
    before: Mapping[str, Attachment] | None = None,
) -> tuple[Attachment, ...]:
    """The attestations of some statements about an image, in both formats.

    `created` is the time, ISO 8601 in UTC, that the bundles' manifests state. `before` has the
    classic manifests that are there already, by tag: what they hold is kept. Raises `BadInput`
    where a statement is not about the image.
    """
    sealed = [sealed_envelope(about(one, image.digest), signer) for one in statements]
    if not sealed:
        return ()
    bundles = [_bundle_of(image, one, signer, created) for one in sealed]
    there = (before or {}).get(attestation_tag(image.digest))
    return (*bundles, classic_attestations(image.digest, sealed, before=there))


def _bundle_of(image: Descriptor, envelope: Envelope, signer: Signer, created: str) -> Attachment:
    kind = predicate_type_of(envelope.payload)
    return bundle(image, bundled(envelope, signer.public), kind, created=created)


def about(statement: bytes, digest: str) -> bytes:
    """The statement, if it is about an image; raises `BadInput` if not."""
    try:
        statement_of(statement, digest)
    except Unusable as error:
        raise BadInput(f"a statement that was to be attached cannot be: {error.reason}") from error
    return statement


def predicate_type_of(payload: bytes) -> str:
    """Of which type a statement is."""
    return str(
        attachments.json_object(payload, "the statement", limit=len(payload), most=None)[
            "predicateType"
        ]
    )


def bundled(envelope: Envelope, key: PublicKey) -> bytes:
    """A Sigstore bundle 0.3 of a signed statement: which key it was, and no log entries."""
    return as_bytes(
        {
            "mediaType": BUNDLE,
            "verificationMaterial": {"publicKey": {"hint": key.hint}},
            "dsseEnvelope": envelope.as_json,
        }
    )


def bundle(image: Descriptor, content: bytes, predicate_type: str, *, created: str) -> Attachment:
    """A Sigstore bundle as a referrer of an image."""
    empty, layer = (
        b"{}",
        Descriptor(media_type=BUNDLE, digest=digest_of(content), size=len(content)),
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": BUNDLE,
        "config": _descriptor(EMPTY, empty),
        "layers": [{**layer.as_json, **_embedded(content)}],
        "subject": Descriptor(
            media_type=image.media_type, digest=image.digest, size=image.size
        ).as_json,
        "annotations": {
            CREATED: created,
            "dev.sigstore.bundle.content": "dsse-envelope",
            BUNDLE_NOTE: predicate_type,
        },
    }
    return Attachment(
        manifest=as_bytes(manifest),
        blobs={digest_of(empty): empty, layer.digest: content},
        artifact_type=BUNDLE,
    )


def _embedded(content: bytes) -> dict[str, str]:
    return {"data": base64.b64encode(content).decode()} if len(content) <= _SHORT else {}


def guesses(
    digests: Iterable[str], reference: str, bundles: Iterable[bytes], *, longest: int
) -> Iterator[bytes]:
    """What the blobs of an image's classic proof are, if they were made with these bundles.

    `reference` is the name it would be signed by; `longest` is the size of a bundle that is looked
    at. Who knows a blob's digest need not fetch it then.
    """
    for digest in digests:
        yield _simple_signing(digest, reference)
    for content in bundles:
        if len(content) <= longest:
            with contextlib.suppress(Unusable):
                found = attachments.json_object(content, "the bundle", limit=longest)
                if isinstance(envelope := found.get("dsseEnvelope"), dict):
                    yield as_bytes(envelope)


def classic_signature(
    digest: str, reference: str, signer: Signer, *, before: Attachment | None = None
) -> Attachment:
    """The manifest of an image's signatures, with one for a name of it unless the key has made one.

    A key that only cosign reaches signs otherwise every time: there would be one more with each
    time that an image is published.

    The payload is that of containers/image:
    https://github.com/containers/image/blob/main/docs/containers-signature.5.md
    """
    payload, tag = _simple_signing(digest, reference), signature_tag(digest)
    for layer in _kept(before):
        if _is_signed(layer, payload, signer.public):
            return _classic(tag, [(layer, payload)], before)
    return _classic(tag, [(_signed_layer(payload, signer.sign(payload)), payload)], before)


def _is_signed(layer: Descriptor, payload: bytes, key: PublicKey) -> bool:
    """Whether it is as we write it: with another note, size or alphabet, others refuse it."""
    with contextlib.suppress(Unusable):
        signature = attachments.base64_bytes(layer.annotations.get(SIGNATURE_NOTE), "the signature")
        return layer == _signed_layer(payload, signature) and key.verifies(signature, payload)
    return False


def _signed_layer(payload: bytes, signature: bytes) -> Descriptor:
    notes = {SIGNATURE_NOTE: base64.b64encode(signature).decode()}
    return _layer(SIMPLE_SIGNING, payload, notes)


def _simple_signing(digest: str, reference: str) -> bytes:
    return as_bytes(
        {
            "critical": {
                "identity": {"docker-reference": reference},
                "image": {"docker-manifest-digest": digest},
                "type": CONTAINER_SIGNATURE,
            },
            "optional": None,
        }
    )


def classic_attestations(
    digest: str, sealed: Sequence[Envelope], *, before: Attachment | None = None
) -> Attachment:
    """The manifest of an image's attestations, with some more."""
    layers = []
    for envelope in sealed:
        content = as_bytes(envelope.as_json)
        # Its signature is in the envelope; cosign wants the annotation all the same.
        notes = {SIGNATURE_NOTE: "", CLASSIC_NOTE: predicate_type_of(envelope.payload)}
        layers.append((_layer(DSSE, content, notes), content))
    return _classic(attestation_tag(digest), layers, before)


def _classic(
    tag: str, added: Sequence[tuple[Descriptor, bytes]], before: Attachment | None
) -> Attachment:
    sizes = {layer.digest: layer.size for layer, _ in added}  # who states another spoils ours
    kept = _kept(before)
    layers = [one for one in kept if sizes.get(one.digest, one.size) == one.size]
    for layer, _ in added:
        if layer not in layers:
            layers.append(layer)
    if len(layers) > MAX_LAYERS:
        raise Refused(
            f"{tag}: {len(layers)} things would be there, and nobody reads more than {MAX_LAYERS}",
            hint="look who wrote them; remove the tag, and publish again",
        )
    config = as_bytes(
        {
            "architecture": "",
            "os": "",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [one.digest for one in layers]},
        }
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _descriptor(CONFIG, config),
        "layers": [one.as_json for one in layers],
    }
    return Attachment(
        manifest=as_bytes(manifest),
        blobs={digest_of(config): config, **{layer.digest: data for layer, data in added}},
        tag=tag,
        drops=(drops := before.drops if before else frozenset()),
        merge=partial(_merged, tag, added, drops),
    )


def _merged(
    tag: str, added: Sequence[tuple[Descriptor, bytes]], drops: frozenset[str], there: bytes
) -> Attachment | None:
    """Proof that was made, with what is at its tag now; None where that has all of it."""
    now = Attachment(manifest=there, blobs={}, tag=tag, drops=drops) if there else None
    made = _classic(tag, added, now)
    return made if now is None or layers_of(made.manifest) != layers_of(there) else None


def _kept(before: Attachment | None) -> list[Descriptor]:
    """What is at a tag, without what is dropped."""
    if before is None:
        return []
    try:
        return [one for one in layers_of(before.manifest) if one.digest not in before.drops]
    except Unusable as error:
        raise Refused(
            f"what is at the tag {before.tag} is no proof, and was not replaced: {error.reason}",
            hint="look who wrote it; remove the tag, and publish again",
        ) from error


def _layer(media_type: str, content: bytes, notes: Mapping[str, str]) -> Descriptor:
    return Descriptor(
        media_type=media_type, digest=digest_of(content), size=len(content), annotations=notes
    )


def _descriptor(media_type: str, content: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content)}
