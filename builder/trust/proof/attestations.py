"""Proof as manifests to push: in the classic format and as Sigstore bundles.

classic  signatures at the tag `sha256-<hex>.sig`, attestations at `sha256-<hex>.att`, one layer for
         each; containers/image's policy.json reads it (`use-sigstore-attachments`).
         https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
bundle   a manifest for each, which names the image as its subject; cosign's format since 3.0.
         https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md

Both contain the same signatures. A short bundle is also embedded in its manifest, so that a reader
needs only one request
(https://github.com/opencontainers/image-spec/blob/v1.1.0/descriptor.md#embedded-content).
The same key and statements give the same bytes, so publishing again adds nothing.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from builder.model.digests import Descriptor, digest_of
from builder.model.errors import BadInput, Refused
from builder.model.predicates import BUNDLE_NOTE, CLASSIC_NOTE
from builder.trust.proof.attachments import (
    BUNDLE,
    CONFIG,
    CONTAINER_SIGNATURE,
    DSSE,
    MANIFEST,
    MAX_LAYERS,
    SIGNATURE_NOTE,
    SIMPLE_SIGNING,
    ProofManifest,
    Unusable,
    base64_bytes,
    layers_of,
)
from builder.trust.proof.keys import PublicKey, Signer
from builder.trust.proof.statements import (
    Envelope,
    as_bytes,
    sealed_envelope,
    signature_statement,
    statement_of,
)

EMPTY = "application/vnd.oci.empty.v1+json"
_SHORT = 1 << 16  # bytes; a manifest may have 4 MiB
_HINT = "find out who wrote it; remove the tag, and publish again"


def signature_tag(digest: str) -> str:
    """Return the tag of an image's signatures in the classic format; `digest` is `sha256:…`."""
    return f"{digest.replace(':', '-')}.sig"


def attestation_tag(digest: str) -> str:
    """Return the tag of an image's attestations in the classic format."""
    return f"{digest.replace(':', '-')}.att"


def proofs(
    image: Descriptor,
    statements: Sequence[bytes],
    signer: Signer,
    *,
    reference: str,
    created: str,
    before: Mapping[str, ProofManifest] | None = None,
) -> tuple[ProofManifest, ...]:
    """Return an image's signature and the attestations of statements, in both formats.

    `reference` is the image's name (`registry/repository`, with a tag or without); the classic
    signature states it. For the rest, see `attestations`.
    """
    attested = attestations(image, statements, signer, created=created, before=before)
    signature = sealed_envelope(signature_statement(image.digest), signer)
    existing = (before or {}).get(signature_tag(image.digest))
    return (
        _bundle_of(image, signature, signer, created),
        classic_signature(image.digest, reference, signer, existing=existing),
        *attested,
    )


def attestations(
    image: Descriptor,
    statements: Sequence[bytes],
    signer: Signer,
    *,
    created: str,
    before: Mapping[str, ProofManifest] | None = None,
) -> tuple[ProofManifest, ...]:
    """Return the attestations of statements about an image, in both formats.

    `created` is the time, ISO 8601 in UTC, that the bundles' manifests state. `before` has the
    existing classic manifests, by tag. Raises `BadInput` if a statement is not about the image,
    and `Refused` if a tag has a manifest without proof.
    """
    for statement in statements:
        predicate_type(statement, image.digest)
    sealed = [sealed_envelope(statement, signer) for statement in statements]
    if not sealed:
        return ()
    bundles = [_bundle_of(image, envelope, signer, created) for envelope in sealed]
    classic = classic_attestations(image.digest, sealed)
    if existing := (before or {}).get(classic.tag):
        _layers_at(classic.tag, existing.manifest)
    return (*bundles, classic)


def predicate_type(statement: bytes, digest: str) -> str:
    """Return a statement's predicate type; raises `BadInput` if it is not about the image."""
    try:
        return str(statement_of(statement, digest)["predicateType"])
    except Unusable as error:
        raise BadInput(f"a statement cannot be attached: {error}") from error


def _bundle_of(
    image: Descriptor, envelope: Envelope, signer: Signer, created: str
) -> ProofManifest:
    kind = predicate_type(envelope.payload, image.digest)
    return bundle(image, bundled(envelope, signer.public), kind, created=created)


def bundled(envelope: Envelope, key: PublicKey) -> bytes:
    """Return a Sigstore bundle 0.3 of a signed statement, with the key's hint and no log entry."""
    return as_bytes(
        {
            "mediaType": BUNDLE,
            "verificationMaterial": {"publicKey": {"hint": key.hint}},
            "dsseEnvelope": envelope.as_json,
        }
    )


def bundle(image: Descriptor, content: bytes, kind: str, *, created: str) -> ProofManifest:
    """Return a Sigstore bundle as a referrer of an image; `kind` is its predicate type."""
    empty = b"{}"
    embedded = {"data": base64.b64encode(content).decode()} if len(content) <= _SHORT else {}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": BUNDLE,
        "config": Descriptor.of(empty, EMPTY).as_json(),
        "layers": [{**Descriptor.of(content, BUNDLE).as_json(), **embedded}],
        "subject": image.bare().as_json(),
        "annotations": {
            "org.opencontainers.image.created": created,
            "dev.sigstore.bundle.content": "dsse-envelope",
            BUNDLE_NOTE: kind,
        },
    }
    return ProofManifest(
        manifest=as_bytes(manifest), blobs={digest_of(empty): empty, digest_of(content): content}
    )


def classic_signature(
    digest: str, reference: str, signer: Signer, *, existing: ProofManifest | None = None
) -> ProofManifest:
    """Return the manifest of an image's signature by the key; `reference` is the image's name.

    An `existing` signature is retained: a key that only cosign reaches signs differently each time.
    The payload is that of containers/image:
    https://github.com/containers/image/blob/main/docs/containers-signature.5.md
    """
    payload, tag = _simple_signing(digest, reference), signature_tag(digest)
    for layer in _layers_at(tag, existing.manifest) if existing else ():
        if _is_signed(layer, payload, signer.public):
            return _classic(tag, [layer], {layer.digest: payload})
    layer = _signed_layer(payload, signer.sign(payload))
    return _classic(tag, [layer], {layer.digest: payload})


def _is_signed(layer: Descriptor, payload: bytes, key: PublicKey) -> bool:
    """Return whether a layer is exactly the one written here; other verifiers refuse variants."""
    with contextlib.suppress(Unusable):
        text = layer.annotations.get(SIGNATURE_NOTE)
        signature = base64_bytes(text, "the signature")
        return layer == _signed_layer(payload, signature) and key.verifies(signature, payload)
    return False


def _signed_layer(payload: bytes, signature: bytes) -> Descriptor:
    notes = {SIGNATURE_NOTE: base64.b64encode(signature).decode()}
    return Descriptor.of(payload, SIMPLE_SIGNING, notes)


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


def classic_attestations(digest: str, sealed: Sequence[Envelope]) -> ProofManifest:
    """Return the manifest of an image's attestations."""
    layers, blobs = [], {}
    for envelope in sealed:
        content = as_bytes(envelope.as_json)
        # The signature is in the envelope; cosign requires the annotation, too.
        notes = {SIGNATURE_NOTE: "", CLASSIC_NOTE: predicate_type(envelope.payload, digest)}
        layers.append(Descriptor.of(content, DSSE, notes))
        blobs[digest_of(content)] = content
    return _classic(attestation_tag(digest), layers, blobs)


def merged(proof: ProofManifest, current: bytes) -> ProofManifest | None:
    """Return proof together with the layers already at its tag; None if it adds nothing to them.

    `current` is the manifest at the tag, empty if there is none. Raises `Refused` if it is not
    proof: then it is not replaced.
    """
    if not current:
        return proof
    own, existing = layers_of(proof.manifest), _layers_at(proof.tag, current)
    sizes = {layer.digest: layer.size for layer in own}  # drops a layer with a wrong size
    layers = [
        layer
        for layer in existing
        if layer.digest not in proof.drops and sizes.get(layer.digest, layer.size) == layer.size
    ]
    layers += [layer for layer in own if layer not in layers]
    if tuple(layers) == existing:
        return None
    written = _classic(proof.tag, layers, proof.blobs)
    return replace(proof, manifest=written.manifest, blobs=written.blobs)


def _classic(tag: str, layers: Sequence[Descriptor], blobs: Mapping[str, bytes]) -> ProofManifest:
    if len(layers) > MAX_LAYERS:
        raise Refused(f"{tag}: {len(layers)} layers; at most {MAX_LAYERS} are read", hint=_HINT)
    config = as_bytes(
        {
            "architecture": "",
            "os": "",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        }
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": Descriptor.of(config, CONFIG).as_json(),
        "layers": [layer.as_json() for layer in layers],
    }
    blobs = {digest_of(config): config, **blobs}
    return ProofManifest(manifest=as_bytes(manifest), blobs=blobs, tag=tag)


def _layers_at(tag: str, manifest: bytes) -> tuple[Descriptor, ...]:
    try:
        return layers_of(manifest)
    except Unusable as error:
        problem = f"the tag {tag} holds something other than proof, and was not replaced"
        raise Refused(f"{problem}: {error}", hint=_HINT) from error
