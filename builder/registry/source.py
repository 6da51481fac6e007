"""Where images and their proof come from: a repository of a registry, or one in an archive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from builder.model import exact_json
from builder.model.exact_json import MOST_VALUES
from builder.registry.failures import WrongContent
from builder.registry.references import Descriptor

LARGEST_MANIFEST = 4 << 20  # bytes; what the specification asks registries to take at least


class Source(ABC):
    """A repository that is read: manifests, blobs and referrers, each checked against its digest.

    Every method may raise `NotThere` and `WrongContent`, and what the place itself can fail with.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """How errors name it: `quay.io/site/pytorch`."""

    @abstractmethod
    def read(self, target: str | Descriptor) -> tuple[Descriptor, bytes]:
        """A manifest by tag, digest or descriptor, and its bytes.

        Raises `WrongContent` when it has another digest or size than the one named, or more than
        4 MiB.
        """

    @abstractmethod
    def small_blob(self, wanted: Descriptor, limit: int = LARGEST_MANIFEST) -> bytes:
        """The bytes of a blob that is at most `limit` bytes: a config, a proof, a list."""

    @abstractmethod
    def read_blob(
        self,
        wanted: Descriptor,
        path: Path,
        *,
        on_bytes: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Write a blob to a file, and check its digest; raises `WrongContent` without the file."""

    @abstractmethod
    def referrers(self, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
        """What refers to a manifest by its `subject`; of one artifact type, if one is named."""

    @abstractmethod
    def stop(self) -> None:
        """End what is under way in other threads; they raise `Interrupted`."""

    def resolve(self, target: str) -> Descriptor:
        """What a tag or a digest is now: of the manifest's bytes, never by anybody's word."""
        return self.read(target)[0]

    def manifest(self, target: str | Descriptor) -> bytes:
        """The bytes of a manifest; see `read`."""
        return self.read(target)[1]

    def document(self, target: str | Descriptor) -> tuple[Descriptor, dict[str, Any]]:
        """A manifest or index as JSON; of what it says of itself, the media type is checked."""
        found, content = self.read(target)
        parsed = self.object_of(content, found.digest, "manifest")
        if parsed.get("mediaType", found.media_type) != found.media_type:
            raise self.wrong(found.digest, "its media type is not the one it is served with")
        return found, parsed

    def object_of(
        self, content: bytes, what: str, kind: str, most: int | None = MOST_VALUES
    ) -> dict[str, Any]:
        """A JSON object of at most so many values; raises `WrongContent` for what is none."""
        return json_object(content, f"{self.name}: {what}", kind, most)

    def wrong(self, what: str, why: str) -> WrongContent:
        """The refusal of what is there."""
        return WrongContent(f"{self.name}: {what}: {why}")


def json_object(
    content: bytes, where: str, kind: str = "manifest", most: int | None = MOST_VALUES
) -> dict[str, object]:
    """A JSON object of somebody else's; raises `WrongContent` for anything that is none."""
    try:
        found = exact_json.parsed(content, most=most)
    except ValueError as error:
        raise WrongContent(f"{where}: it is not JSON that can be relied on") from error
    if not isinstance(found, dict):
        raise WrongContent(f"{where}: it is no {kind}")
    return found


def descriptors(manifest: Mapping[str, object], key: str, where: str) -> list[Descriptor]:
    """Those that a manifest lists under a key: none, if it has no such list."""
    found = manifest.get(key) or []
    if not isinstance(found, list):
        raise WrongContent(f"{where}: its {key} are no list")
    return [Descriptor.read(one, where) for one in found]


def blobs_of(manifest: Mapping[str, object], where: str) -> list[Descriptor]:
    """The blobs that a manifest names, its configuration first; none of an index."""
    config = [Descriptor.read(manifest["config"], where)] if "config" in manifest else []
    return [*config, *descriptors(manifest, "layers", where)]
