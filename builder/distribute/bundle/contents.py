"""What is put into an archive: manifests with their repositories and tags, and blobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from builder.distribute.bundle.layout import BUNDLE, REF_NAME, REPOSITORY, Bundle
from builder.distribute.publish import Prove, Release
from builder.distribute.publish.attaching import Attached
from builder.distribute.publish.mirroring import Mirrored
from builder.distribute.publish.pushing import file_manifests, index_of
from builder.registry import INDEX, INDEXES, MANIFEST, Descriptor, NotThere, Source
from builder.registry.kinds import EMPTY, EMPTY_CONTENT, as_bytes
from builder.registry.source import json_object

_MOST_TAGS = 100  # of one release
INPUTS = "build-images-inputs"  # the repository of bases, sources, packages and project
Origin: TypeAlias = "Path | bytes | Source"


class Nothing(Source):
    """A repository without anything, as one that is about to be filled; named by a recipe."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def read(self, target: str | Descriptor) -> tuple[Descriptor, bytes]:
        raise NotThere(f"{self.name}: {target}")

    def small_blob(self, wanted: Descriptor, limit: int = 0) -> bytes:
        del limit
        raise NotThere(f"{self.name}: {wanted.digest}")

    def read_blob(self, wanted: Descriptor, path: Path, *, on_bytes: object = None) -> None:
        del path, on_bytes
        raise NotThere(f"{self.name}: {wanted.digest}")

    def referrers(self, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
        del digest, artifact_type
        return ()

    def stop(self) -> None:
        return


@dataclass(kw_only=True, slots=True)
class Contents:
    """What an archive is to hold: blobs by digest, and the entries of its `index.json`.

    `kind` is the artifact type of that; empty for a plain image layout.
    """

    kind: str = BUNDLE
    blobs: dict[str, tuple[Descriptor, Origin]] = field(default_factory=dict)
    entries: list[Descriptor] = field(default_factory=list)

    def add_blob(self, blob: Descriptor, origin: Origin) -> None:
        """A blob; the first place it is known from is where it is read."""
        self.blobs.setdefault(blob.digest, (blob, origin))

    def add_manifest(self, content: bytes, media_type: str = MANIFEST) -> Descriptor:
        """A manifest that an index names; its blobs are added, too, by who knows them."""
        found = Descriptor.of(content, media_type)
        self.add_blob(found, content)
        return found

    def list_manifest(
        self, content: bytes, media_type: str, repository: str, tags: Sequence[str] = ()
    ) -> Descriptor:
        """A manifest with an entry of its own for each tag, or one without a tag."""
        found = self.add_manifest(content, media_type)
        kind = str(json_object(content, found.digest).get("artifactType") or "")
        for notes in [{REF_NAME: f"{repository}:{tag}"} for tag in tags] or [{}]:
            entry = replace(
                found, artifact_type=kind, annotations={REPOSITORY: repository, **notes}
            )
            if entry not in self.entries:
                self.entries.append(entry)
        return found

    def add_attached(self, repository: str, some: Iterable[Attached]) -> None:
        """Proof, with its blobs."""
        for one in some:
            for digest, content in one.blobs.items():
                blob = Descriptor(media_type="", digest=digest, size=len(content))
                self.add_blob(blob, content)
            self.list_manifest(one.manifest, MANIFEST, repository, [one.tag] if one.tag else [])

    def add_release(self, release: Release, prove: Prove) -> None:
        """A release of the output folder, with the proof that is made of it."""
        name, nothing = release.recipe, Nothing(release.recipe)
        self.add_blob(Descriptor.of(EMPTY_CONTENT, EMPTY), EMPTY_CONTENT)
        content = index_of(release)
        index = self.list_manifest(content, INDEX, name, (release.tag, *release.floating))
        for image in release.images:
            self.add_manifest(image.manifest)
            for blob in (*image.blobs, *image.files.values()):
                self.add_blob(blob.descriptor, blob.path)
            for manifest in file_manifests(image).values():
                self.list_manifest(manifest, MANIFEST, name)
            self.add_attached(name, prove(nothing, image.image.bare(), (image,)))
        self.add_attached(name, prove(nothing, index, release.images))

    def add_mirrored(self, release: Mirrored, source: Source) -> None:
        """A release of a registry, with all that refers to it there."""
        name = release.recipe
        for one in release.everything:
            for blob in one.blobs():
                self.add_blob(blob, source)
        for image in release.images.values():
            self.add_manifest(image.content, image.descriptor.media_type)
        index = release.index
        self.list_manifest(index.content, index.descriptor.media_type, name, release.tags)
        for one in release.proof:
            tags = (one.tag,) if one.tag else ()
            self.list_manifest(one.content, one.descriptor.media_type, name, tags)

    def index(self) -> bytes:
        """The bytes of `index.json`."""
        return as_bytes(
            {
                "schemaVersion": 2,
                "mediaType": INDEX,
                **({"artifactType": self.kind} if self.kind else {}),
                "manifests": [one.as_json() for one in self.entries],
            }
        )


def artifact(
    contents: Contents,
    kind: str,
    config: object,
    files: Mapping[str, tuple[Descriptor, Origin]],
    *,
    title: str,
) -> Descriptor:
    """An artifact of a type of our own: a document, and files by the title that each has."""
    document = as_bytes(config)
    about = Descriptor.of(document, f"{kind}+json")
    contents.add_blob(about, document)
    layers = []
    for name, (blob, origin) in sorted(files.items()):
        contents.add_blob(blob, origin)
        layers.append(replace(blob, annotations={title: name}))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": about.as_json(),
        "layers": [one.as_json() for one in layers],
    }
    return replace(contents.add_manifest(as_bytes(manifest)), artifact_type=kind)


def releases_of(bundle: Bundle) -> dict[tuple[str, str], list[str]]:
    """The releases of an archive: tags by repository and digest of the index, its own tag first."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in bundle.listed:
        is_release = one.descriptor.media_type in INDEXES and one.repository != INPUTS
        if one.tag and is_release:
            found.setdefault((one.repository, one.descriptor.digest), []).append(one.tag)
    for (repository, digest), tags in found.items():
        if len(tags) > _MOST_TAGS:  # each is judged, and nobody signed it
            raise bundle.archive.wrong(f"{repository}: {digest} has more than {_MOST_TAGS} tags")
    return found
