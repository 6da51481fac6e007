"""Evidence that an image fails, attached to what is published: a later failure counts.

An image whose newest verification failed is refused. Where the registry has that very image
already, its evidence tells whoever pulls it. No tag of a release is touched, nothing else is sent,
and the image is not signed with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.distribute.publish.attachments import Attached, attach
from builder.distribute.publish.releases import finished, has_failed, is_test_result
from builder.model import PlannedImage
from builder.model.manifest import Manifest
from builder.model.predicates import result_of
from builder.registry import Descriptor, NotThere, Registry

# Makes statements about an image into what is attached to it; the last is a time, ISO 8601.
Attest = Callable[[Registry, Descriptor, Sequence[bytes], str], Sequence[Attached]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failing:
    """An image whose checks failed: `evidence` are the statements that say so, by their files.

    `digest` is that of its manifest, `finished` when the last of these runs ended, ISO 8601.
    """

    digest: str
    evidence: Mapping[str, bytes]
    finished: str


def failing(image: PlannedImage, folder: Path, manifest: Manifest | None) -> Failing | None:
    """Return the evidence in an output folder that its image fails; None without any.

    `manifest` is that of the folder, None if there is none. Whether the image was built from
    today's inputs is no matter: what is published does not change with them.
    """
    if manifest is None:
        return None
    digest = manifest.artifacts["oci"].digest
    evidence = {
        name: content
        for name in manifest.evidence
        if (content := _failed(folder / name, image, digest))
    }
    if not evidence:
        return None
    last = max(map(finished, evidence.values()))
    return Failing(digest=digest, evidence=evidence, finished=last)


def _failed(file: Path, image: PlannedImage, digest: str) -> bytes:
    """A statement that an image fails, byte for byte; empty if the file holds none."""
    try:
        content = file.read_bytes()
        statement = json.loads(content)
        finished(content)
        if not is_test_result(statement):
            return b""
        result = result_of(statement)
        if not has_failed(result.lists):
            return b""
        return content if result.subjects.get(f"{image.identifier}/oci") == digest else b""
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return b""  # that it cannot be read is a reason of its own


def published_image(registry: Registry, item: Failing) -> Descriptor | None:
    """The image as the registry has it; None if it has not."""
    try:
        return registry.resolve(item.digest)
    except NotThere:
        return None


def attach_failing(registry: Registry, image: Descriptor, item: Failing, attest: Attest) -> None:
    """Attach the evidence to an image that the registry has."""
    statements = list(item.evidence.values())
    attach(registry, image.digest, lambda: attest(registry, image, statements, item.finished))
