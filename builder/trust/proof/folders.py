"""The statements that are attached to an image, out of what lies in its output folder."""

from __future__ import annotations

import json
from pathlib import Path

from builder.model.errors import BadInput
from builder.model.exact_json import parsed
from builder.model.manifest import Manifest
from builder.model.predicates import CYCLONEDX
from builder.system.bound_files import read_bound
from builder.trust.proof.envelopes import statement
from builder.trust.proof.provenance import provenance


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
