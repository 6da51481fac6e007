"""Proof in a registry: manifests that refer to an image, and the verified statements in them.

A manifest is untrusted until its signatures are verified.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from builder.model.digests import Descriptor, digest_of
from builder.model.exact_json import parsed, part

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
DSSE = "application/vnd.dsse.envelope.v1+json"
# Tuples, not sets: a media type in a manifest may be any JSON value, even one without a hash.
BUNDLES = (
    BUNDLE,
    "application/vnd.dev.sigstore.bundle+json;version=0.3",
    "application/vnd.dev.sigstore.bundle+json;version=0.2",
    "application/vnd.dev.sigstore.bundle+json;version=0.1",
)
_PROOF = (*BUNDLES, SIMPLE_SIGNING, DSSE)

SIGNATURE_NOTE = "dev.cosignproject.cosign/signature"
CONTAINER_SIGNATURE = "cosign container image signature"

# cosign's own limit is 128 MiB; the bill of materials of 2,000 packages is 2 MiB.
MAX_MANIFEST = 4 << 20  # bytes; the least that a registry must accept (OCI distribution spec)
MAX_PAYLOAD = 32 << 20  # bytes of one signature, attestation or bundle
MAX_LAYERS = 200  # of one manifest
MAX_ATTACHMENTS = 1000  # of one image
MAX_CLAIMS = 2000  # layers of all manifests; each may need several signature checks

_MOST_VALUES = 20_000  # of a manifest: 200 layers, each with a hundred annotations
MOST_VALUES = 10_000  # of a bundle, an envelope or a log's entry; the largest have a few hundred
_USUAL = str.maketrans("-_", "+/")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofManifest:
    """A manifest with proof of an image, and the blobs that it names, by digest.

    `tag` is its tag in the classic format (`sha256-….sig`). A referrer has no tag: it is written by
    digest, and names the image as its `subject`. `replaces` are the digests of manifests to delete
    afterwards. `fresh` is True if the image had no proof before. Existing layers at the tag remain,
    except those with a digest in `drops`.
    """

    manifest: bytes
    blobs: Mapping[str, bytes]
    tag: str = ""
    replaces: tuple[str, ...] = ()
    fresh: bool = False
    drops: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedStatement:
    """A signature or attestation of the image by the trusted keys named in `keys`.

    `payload` is the signed bytes, and `statement` their JSON: an in-toto statement, or the claim of
    a classic signature. `signer` is the identity in a certificate, if there is one; several keys of
    a policy may match it. `source` is the digest of the manifest, `layer` that of the layer in it;
    `format` is classic or bundle.
    """

    statement: Mapping[str, object]
    payload: bytes
    keys: tuple[str, ...]
    source: str
    layer: str
    format: str
    signer: str = ""

    @property
    def predicate_type(self) -> str:
        return str(self.statement.get("predicateType"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A manifest or layer that proves nothing, with the reason."""

    reason: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedProof:
    """The proof of an image that trusted keys signed, and the rejected rest."""

    signatures: tuple[VerifiedStatement, ...] = ()
    attestations: tuple[VerifiedStatement, ...] = ()
    rejected: tuple[Rejection, ...] = ()


class Unusable(Exception):
    """Proof is not valid, with the reason; raised and caught in this package."""


def json_object(
    data: bytes, title: str, *, limit: int, most: int | None = MOST_VALUES
) -> dict[str, object]:
    """Return a JSON object in UTF-8; raises `Unusable`, which names `title`.

    It has at most `limit` bytes and `most` values (None: no limit, for trusted content).
    """
    if len(data) > limit:
        raise Unusable(f"{title} has {len(data)} bytes; at most {limit} are read")
    try:
        value = parsed(data, most=most)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()  # fails for a lone surrogate
    except ValueError as error:
        raise Unusable(f"{title} is not valid JSON") from error
    if not isinstance(value, dict):
        raise Unusable(f"{title} is not a JSON object")
    return value


def base64_bytes(text: object, title: str) -> bytes:
    """Return the bytes of Base64 in the usual or the URL-safe alphabet; raises `Unusable`."""
    if not isinstance(text, str):
        raise Unusable(f"{title} is missing")
    try:
        return base64.b64decode(text.translate(_USUAL), validate=True)
    except ValueError as error:
        raise Unusable(f"{title} is not Base64") from error


def descriptor(value: object, title: str, *, limit: int) -> Descriptor:
    """Read a descriptor of an OCI manifest; raises `Unusable`, also if the blob is too large."""
    try:
        blob = Descriptor.read(value)
    except ValueError as error:
        raise Unusable(f"{title} has no SHA-256 digest and size: {error}") from error
    if isinstance(value, dict) and (value.get("annotations") or {}) != dict(blob.annotations):
        raise Unusable(f"{title} has annotations that are not texts")
    if blob.size > limit:
        raise Unusable(f"{title} has {blob.size} bytes; at most {limit} are read")
    return blob


def manifest_of(data: bytes) -> dict[str, object]:
    """Parse an OCI manifest; raises `Unusable`."""
    manifest = json_object(data, "the manifest", limit=MAX_MANIFEST, most=_MOST_VALUES)
    layers = manifest.get("layers")
    if manifest.get("schemaVersion") != 2 or not isinstance(layers, list):  # noqa: PLR2004 - OCI's
        raise Unusable("not an OCI manifest")
    if len(layers) > MAX_LAYERS:
        raise Unusable(f"the manifest has {len(layers)} layers; at most {MAX_LAYERS}")
    return manifest


def layers_of(manifest: bytes) -> tuple[Descriptor, ...]:
    """Return the layers of a manifest that contain proof; raises `Unusable`.

    A manifest of anything else gives an empty result, whatever the size of its layers.
    """
    return tuple(
        descriptor(layer, "a layer", limit=MAX_PAYLOAD)
        for layer in part(manifest_of(manifest), "layers")
        if part(layer, "mediaType") in _PROOF
    )


def embedded(manifest: bytes) -> dict[str, bytes]:
    """Return the blobs that are embedded in their descriptors and match digest and size, by digest.

    https://github.com/opencontainers/image-spec/blob/v1.1.0/descriptor.md#embedded-content
    """
    blobs = {}
    for layer in part(manifest_of(manifest), "layers"):
        with contextlib.suppress(Unusable):
            content = base64_bytes(part(layer, "data"), "the content")
            digest = digest_of(content)
            if (digest, len(content)) == (layer.get("digest"), layer.get("size")):
                blobs[digest] = content
    return blobs


def content_of(attachment: ProofManifest, layer: Descriptor) -> bytes:
    """Return the bytes of a layer as the manifest names them; raises `Unusable`."""
    data = attachment.blobs.get(layer.digest)
    if data is None:
        raise Unusable(f"the blob {layer.digest} is missing")
    if len(data) != layer.size or digest_of(data) != layer.digest:
        raise Unusable(f"the blob {layer.digest} does not match its digest")
    return data


def subject_of(manifest: bytes) -> str:
    """Return the digest of a manifest's subject; empty if it has none. Raises `Unusable`."""
    subject = manifest_of(manifest).get("subject")
    return "" if subject is None else descriptor(subject, "the subject", limit=1 << 62).digest
