"""Media types of published artifacts, and manifests that refer to an image by `subject`.

SIF: what `apptainer pull oras://` takes, a single layer of that type
(https://github.com/apptainer/apptainer/blob/main/internal/pkg/client/oras/oras.go). The tarball's
type is this project's own: no standard has one for a plain root file system.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from builder.registry.references import Descriptor

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
EMPTY_CONTENT = b"{}"
SIF = "application/vnd.sylabs.sif.layer.v1.sif"
TARBALL = "application/vnd.build-images.charliecloud.v1.tar+gzip"
STATEMENT = "application/vnd.in-toto+json"
CYCLONEDX = "application/vnd.cyclonedx+json"
# What an archive of `bundle` has besides images: docs/air-gap.md.
PROJECT = "application/vnd.build-images.project.v1"
BASE = "application/vnd.build-images.base.v1"
REGISTRY_BASE = "application/vnd.build-images.registry-base.v1"
SOURCES = "application/vnd.build-images.sources.v1"
NATIVE = "application/vnd.build-images.native.v1"
PACKAGES = "application/vnd.build-images.packages.v1"
ARTIFACT_TYPES: Mapping[str, str] = {"sif": SIF, "charliecloud": TARBALL}  # by format
TITLE = "org.opencontainers.image.title"


def referrer(
    layer: Descriptor, subject: Descriptor, *, artifact_type: str, annotations: Mapping[str, str]
) -> bytes:
    """Return the manifest of one file that belongs to an image; equal files give equal bytes."""
    return as_bytes(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": artifact_type,
            "config": Descriptor.of(EMPTY_CONTENT, EMPTY).as_json(),
            "layers": [layer.as_json()],
            "subject": subject.bare().as_json(),
            **({"annotations": dict(annotations)} if annotations else {}),
        }
    )


def as_bytes(value: object) -> bytes:
    """Return JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
