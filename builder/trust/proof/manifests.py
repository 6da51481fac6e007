"""Which parts of a manifest are proof, whoever wrote it: nothing of it is believed yet."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from builder.model.digests import digest_of
from builder.model.errors import BadInput
from builder.model.exact_json import member, parsed, part
from builder.model.manifest import Manifest
from builder.model.predicates import CYCLONEDX
from builder.system.files import read_bound
from builder.trust.proof import attachments
from builder.trust.proof.attachments import (
    BUNDLE,
    DSSE,
    MALFORMED,
    MAX_LAYERS,
    MAX_MANIFEST,
    MAX_PAYLOAD,
    SIMPLE_SIGNING,
    Attachment,
    Descriptor,
    Unusable,
)
from builder.trust.proof.statements import provenance, statement

# Tuples: what is looked for in them may be anything, also what no set can be asked for.
BUNDLES = (
    BUNDLE,
    "application/vnd.dev.sigstore.bundle+json;version=0.3",
    "application/vnd.dev.sigstore.bundle+json;version=0.2",
    "application/vnd.dev.sigstore.bundle+json;version=0.1",
)
_MOST_VALUES = 20_000  # of a manifest: 200 layers, each with a hundred annotations
_PROOF = (*BUNDLES, SIMPLE_SIGNING, DSSE)


def manifest_of(data: bytes) -> dict[str, Any]:
    """An OCI manifest out of its bytes; raises `Unusable`."""
    found = attachments.json_object(data, "the manifest", limit=MAX_MANIFEST, most=_MOST_VALUES)
    layers = found.get("layers")
    if found.get("schemaVersion") != 2 or not isinstance(layers, list):  # noqa: PLR2004 - OCI's
        raise Unusable(MALFORMED, "not an OCI manifest")
    if len(layers) > MAX_LAYERS:
        raise Unusable(MALFORMED, f"the manifest has {len(layers)} layers; at most {MAX_LAYERS}")
    return found


def layers_of(manifest: bytes) -> tuple[Descriptor, ...]:
    """The blobs of a manifest that are proof: those have to be fetched. Raises `Unusable`.

    Empty for the manifest of something else, whatever its size.
    """
    layers = member(manifest_of(manifest), "layers")
    return tuple(
        attachments.descriptor(one, "a layer", limit=MAX_PAYLOAD)
        for one in layers
        if part({"": one}, "", "mediaType") in _PROOF
    )


def embedded(manifest: bytes) -> dict[str, bytes]:
    """The blobs that stand in their own descriptors, by digest; what holds other bytes does not.

    https://github.com/opencontainers/image-spec/blob/v1.1.0/descriptor.md#embedded-content
    """
    found = {}
    for one in member(manifest_of(manifest), "layers"):
        if data := part({"": one}, "", "data"):
            with contextlib.suppress(Unusable):
                content = attachments.base64_bytes(data, "the content")
                digest = digest_of(content)
                if (digest, len(content)) == (one.get("digest"), one.get("size")):
                    found[digest] = content
    return found


def content_of(attachment: Attachment, layer: Descriptor) -> bytes:
    """The bytes of a layer, which are those that the manifest names; raises `Unusable`."""
    data = attachment.blobs.get(layer.digest)
    if data is None:
        raise Unusable(MALFORMED, f"the blob {layer.digest} is missing")
    if len(data) != layer.size or digest_of(data) != layer.digest:
        raise Unusable(MALFORMED, f"the blob {layer.digest} holds other bytes")
    return data


def subject_of(manifest: bytes) -> str:
    """The digest that a manifest names as its subject; empty if none. Raises `Unusable`."""
    subject = manifest_of(manifest).get("subject")
    if subject is None:
        return ""
    return attachments.descriptor(subject, "the subject", limit=1 << 62).digest


def statements_of(folder: Path, manifest: Manifest, *, builder_id: str) -> tuple[bytes, ...]:
    """The evidence of each run, the bill of materials and the provenance, each a statement to sign.

    `folder` holds the image's manifest.json, which `manifest` is. The evidence is taken as it lies
    there, byte for byte. Raises `BadInput` where one of them is missing, is none, or is not the
    one that the manifest names by its digest.
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
