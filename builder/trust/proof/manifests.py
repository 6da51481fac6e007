"""The parts of a manifest that are proof, whoever wrote it: nothing of it is trusted yet."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from builder.model.digests import digest_of
from builder.model.errors import BadInput
from builder.model.exact_json import parsed, part
from builder.model.manifest import Manifest
from builder.model.predicates import CYCLONEDX
from builder.system.files import read_bound
from builder.trust.proof.attachments import (
    BUNDLE,
    DSSE,
    MAX_LAYERS,
    MAX_MANIFEST,
    MAX_PAYLOAD,
    SIMPLE_SIGNING,
    BlobDescriptor,
    ProofManifest,
    Unusable,
    base64_bytes,
    descriptor,
    json_object,
)
from builder.trust.proof.statements import provenance, statement

# Tuples: a media type to look up in them may be any JSON, also what cannot be hashed.
BUNDLES = (
    BUNDLE,
    "application/vnd.dev.sigstore.bundle+json;version=0.3",
    "application/vnd.dev.sigstore.bundle+json;version=0.2",
    "application/vnd.dev.sigstore.bundle+json;version=0.1",
)
_MOST_VALUES = 20_000  # of a manifest: 200 layers, each with a hundred annotations
_PROOF = (*BUNDLES, SIMPLE_SIGNING, DSSE)


def manifest_of(data: bytes) -> dict[str, object]:
    """Return an OCI manifest out of its bytes; raises `Unusable`."""
    manifest = json_object(data, "the manifest", limit=MAX_MANIFEST, most=_MOST_VALUES)
    layers = manifest.get("layers")
    if manifest.get("schemaVersion") != 2 or not isinstance(layers, list):  # noqa: PLR2004 - OCI's
        raise Unusable("not an OCI manifest")
    if len(layers) > MAX_LAYERS:
        raise Unusable(f"the manifest has {len(layers)} layers; at most {MAX_LAYERS}")
    return manifest


def layers_of(manifest: bytes) -> tuple[BlobDescriptor, ...]:
    """Return the layers of a manifest that are proof, whose blobs are needed; raises `Unusable`.

    Empty for the manifest of something else, whatever its size.
    """
    return tuple(
        descriptor(layer, "a layer", limit=MAX_PAYLOAD)
        for layer in part(manifest_of(manifest), "layers")
        if part(layer, "mediaType") in _PROOF
    )


def embedded(manifest: bytes) -> dict[str, bytes]:
    """Return the blobs embedded in their own descriptors, by digest, if they fit digest and size.

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


def content_of(attachment: ProofManifest, layer: BlobDescriptor) -> bytes:
    """Return the bytes of a layer as the manifest names them; raises `Unusable`."""
    data = attachment.blobs.get(layer.digest)
    if data is None:
        raise Unusable(f"the blob {layer.digest} is missing")
    if len(data) != layer.size or digest_of(data) != layer.digest:
        raise Unusable(f"the blob {layer.digest} has other bytes")
    return data


def subject_of(manifest: bytes) -> str:
    """Return the digest of a manifest's subject; empty if it has none. Raises `Unusable`."""
    subject = manifest_of(manifest).get("subject")
    return "" if subject is None else descriptor(subject, "the subject", limit=1 << 62).digest


def statements_of(folder: Path, manifest: Manifest, *, builder_id: str) -> tuple[bytes, ...]:
    """Return the statements to sign: the evidence of each run, bill of materials and provenance.

    `folder` has the image's manifest.json, which `manifest` is. The evidence is taken byte for
    byte. Raises `BadInput` where a file is missing, malformed, or not the one in the manifest.
    """
    evidence = [_read(folder, manifest, path) for path in manifest.evidence]
    if not evidence:
        raise BadInput(
            f"{folder}: there is no evidence, so nothing is proven of this image",
            hint=f"build-images verify {folder}",
        )
    bill = statement(
        name=f"{manifest.image}/oci",
        digest=manifest.artifacts["oci"].digest,
        predicate_type=CYCLONEDX,
        predicate=json.loads(_read(folder, manifest, manifest.sbom)),
    )
    return (*evidence, bill, provenance(manifest, builder_id=builder_id))


def _read(folder: Path, manifest: Manifest, name: str) -> bytes:
    data = read_bound(folder, manifest, name)
    try:
        if not isinstance(parsed(data, most=None), dict):
            raise BadInput(f"{folder / name}: not a JSON object")
    except ValueError as error:
        raise BadInput(f"{folder / name}: cannot be read as JSON ({error})") from error
    return data
