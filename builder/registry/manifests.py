"""Media types of published artifacts, and manifests that refer to an image by `subject`.

SIF: `apptainer pull oras://` requires a single layer of that type
(https://github.com/apptainer/apptainer/blob/main/internal/pkg/client/oras/oras.go). The tarball's
type is this project's own: no standard defines one for a plain root file system.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.model import exact_json
from builder.model.digests import Descriptor, canonical_json
from builder.model.exact_json import MOST_VALUES
from builder.registry.failures import WrongContent
from builder.registry.references import read_descriptor

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
EMPTY_CONTENT = b"{}"
SIF = "application/vnd.sylabs.sif.layer.v1.sif"
TARBALL = "application/vnd.build-images.charliecloud.v1.tar+gzip"
STATEMENT = "application/vnd.in-toto+json"
CYCLONEDX = "application/vnd.cyclonedx+json"
# Files besides images in an archive of `bundle`: docs/air-gap.md.
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
    """Return the manifest for one file of an image; equal files give equal bytes."""
    return canonical_json(
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


LARGEST_MANIFEST = 4 << 20  # bytes; the specification asks registries to accept at least this


class Source(ABC):
    """A repository to read: manifests, blobs and referrers, each checked against its digest.

    Every method may raise `NotFound`, `WrongContent`, and errors of the registry or folder.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name for error messages: `quay.io/site/pytorch`."""

    @abstractmethod
    def read(self, target: str | Descriptor) -> tuple[Descriptor, bytes]:
        """Return a manifest by tag, digest or descriptor, and its bytes.

        Raises `WrongContent` if its digest or size differs from the requested one, or if it is
        larger than 4 MiB.
        """

    @abstractmethod
    def small_blob(self, blob: Descriptor, limit: int = LARGEST_MANIFEST) -> bytes:
        """Return the bytes of a blob that is at most `limit` bytes: a config, a proof, a list."""

    @abstractmethod
    def read_blob(self, blob: Descriptor, path: Path) -> None:
        """Write a blob to a file; on a wrong digest, remove the file and raise `WrongContent`."""

    @abstractmethod
    def referrers(self, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
        """Return the referrers of a manifest, of all artifact types or of one."""

    @abstractmethod
    def stop(self) -> None:
        """End the requests of other threads; they raise `Interrupted`."""

    @abstractmethod
    def check(self) -> None:
        """Raise `Interrupted` after `stop`."""

    def resolve(self, target: str) -> Descriptor:
        """Return the current descriptor of a tag or digest, computed from the manifest's bytes."""
        return self.read(target)[0]

    def manifest(self, target: str | Descriptor) -> bytes:
        """Return the bytes of a manifest; see `read`."""
        return self.read(target)[1]

    def document(self, target: str | Descriptor) -> tuple[Descriptor, dict[str, Any]]:
        """Return a manifest or index as JSON; its `mediaType` is checked, if it has one."""
        descriptor, content = self.read(target)
        return descriptor, self.document_of(descriptor, content)

    def document_of(self, descriptor: Descriptor, content: bytes) -> dict[str, object]:
        """Parse the bytes of a manifest or index; see `document`."""
        parsed = self.object_of(content, descriptor.digest)
        if parsed.get("mediaType", descriptor.media_type) != descriptor.media_type:
            raise self.wrong(descriptor.digest, "its media type differs from the Content-Type")
        return parsed

    def object_of(
        self, content: bytes, resource: str, most: int | None = MOST_VALUES
    ) -> dict[str, Any]:
        """Return a JSON object of at most `most` values; raises `WrongContent` otherwise."""
        return json_object(content, f"{self.name}: {resource}", most)

    def wrong(self, resource: str, reason: str) -> WrongContent:
        """Return the error for a resource with wrong content."""
        return WrongContent(f"{self.name}: {resource}: {reason}")


def json_object(content: bytes, where: str, most: int | None = MOST_VALUES) -> dict[str, object]:
    """Return an untrusted JSON object; raises `WrongContent` for anything else."""
    try:
        value = exact_json.parsed(content, most=most)
    except ValueError as error:
        raise WrongContent(f"{where}: it is not valid JSON") from error
    if not isinstance(value, dict):
        raise WrongContent(f"{where}: it is not a JSON object")
    return value


def descriptors(manifest: Mapping[str, object], key: str, where: str) -> list[Descriptor]:
    """Return the descriptors that a manifest lists under a key; none if the key is missing."""
    entries = manifest.get(key) or []
    if not isinstance(entries, list):
        raise WrongContent(f"{where}: {key} is not a list")
    return [read_descriptor(entry, where) for entry in entries]


def blobs_of(manifest: Mapping[str, object], where: str) -> list[Descriptor]:
    """Return the blobs that a manifest names, its configuration first; none for an index."""
    config = [read_descriptor(manifest["config"], where)] if "config" in manifest else []
    return [*config, *descriptors(manifest, "layers", where)]
