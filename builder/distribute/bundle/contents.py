"""Contents of an archive: manifests with their repositories and tags, and blobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from builder.distribute.bundle.layout import BUNDLE, REF_NAME, REPOSITORY, Bundle
from builder.distribute.publish.attaching import Attached
from builder.distribute.publish.mirroring import Mirrored
from builder.distribute.publish.pushing import Prove, file_manifests, index_of
from builder.distribute.publish.releases import Release
from builder.registry import INDEX, INDEXES, MANIFEST, Descriptor, NotThere, Source
from builder.registry.kinds import EMPTY, EMPTY_CONTENT, as_bytes
from builder.registry.source import json_object

_MOST_TAGS = 100  # of one release
INPUTS = "build-images-inputs"  # the repository of bases, sources, packages and project
Origin: TypeAlias = "Path | bytes | Source"


class EmptyRepository(Source):
    """A repository without anything, as one that is about to be filled; named by a recipe."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def read(self, target: str | Descriptor) -> tuple[Descriptor, bytes]:
        raise NotThere(f"{self.name}: {target}")

    def small_blob(self, blob: Descriptor, limit: int = 0) -> bytes:
        del limit
        raise NotThere(f"{self.name}: {blob.digest}")

    def read_blob(self, blob: Descriptor, path: Path, *, on_bytes: object = None) -> None:
        del path, on_bytes
        raise NotThere(f"{self.name}: {blob.digest}")

    def referrers(self, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
        del digest, artifact_type
        return ()

    def stop(self) -> None:
        return


@dataclass(kw_only=True, slots=True)
class Contents:
    """Contents of an archive: blobs by digest, and the entries of its `index.json`.

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
        descriptor = Descriptor.of(content, media_type)
        self.add_blob(descriptor, content)
        return descriptor

    def list_manifest(
        self, content: bytes, media_type: str, repository: str, tags: Sequence[str] = ()
    ) -> Descriptor:
        """A manifest with an entry of its own for each tag, or one without a tag."""
        descriptor = self.add_manifest(content, media_type)
        kind = str(json_object(content, descriptor.digest).get("artifactType") or "")
        for notes in [{REF_NAME: f"{repository}:{tag}"} for tag in tags] or [{}]:
            entry = replace(
                descriptor, artifact_type=kind, annotations={REPOSITORY: repository, **notes}
            )
            if entry not in self.entries:
                self.entries.append(entry)
        return descriptor

    def add_attached(self, repository: str, attachments: Iterable[Attached]) -> None:
        """Proof, with its blobs."""
        for attached in attachments:
            for digest, content in attached.blobs.items():
                blob = Descriptor(media_type="", digest=digest, size=len(content))
                self.add_blob(blob, content)
            tags = (attached.tag,) if attached.tag else ()
            self.list_manifest(attached.manifest, MANIFEST, repository, tags)

    def add_release(self, release: Release, prove: Prove) -> None:
        """A release of the output folder, with the proof that is made of it."""
        name, empty = release.recipe, EmptyRepository(release.recipe)
        self.add_blob(Descriptor.of(EMPTY_CONTENT, EMPTY), EMPTY_CONTENT)
        content = index_of(release)
        index = self.list_manifest(content, INDEX, name, (release.tag, *release.floating))
        for image in release.images:
            self.add_manifest(image.manifest)
            for blob in (*image.blobs, *image.files.values()):
                self.add_blob(blob.descriptor, blob.path)
            for manifest in file_manifests(image).values():
                self.list_manifest(manifest, MANIFEST, name)
            self.add_attached(name, prove(empty, image.image.bare(), (image,)))
        self.add_attached(name, prove(empty, index, release.images))

    def add_mirrored(self, release: Mirrored, source: Source) -> None:
        """A release of a registry, with all that refers to it there."""
        name = release.recipe
        for copied in release.everything:
            for blob in copied.blobs():
                self.add_blob(blob, source)
        for image in release.images.values():
            self.add_manifest(image.content, image.descriptor.media_type)
        index = release.index
        self.list_manifest(index.content, index.descriptor.media_type, name, release.tags)
        for proof in release.proof:
            tags = (proof.tag,) if proof.tag else ()
            self.list_manifest(proof.content, proof.descriptor.media_type, name, tags)

    def index(self) -> bytes:
        """The bytes of `index.json`."""
        return as_bytes(
            {
                "schemaVersion": 2,
                "mediaType": INDEX,
                **({"artifactType": self.kind} if self.kind else {}),
                "manifests": [entry.as_json() for entry in self.entries],
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
        "layers": [layer.as_json() for layer in layers],
    }
    return replace(contents.add_manifest(as_bytes(manifest)), artifact_type=kind)


def releases_of(bundle: Bundle) -> dict[tuple[str, str], list[str]]:
    """The releases of an archive: tags by repository and digest of the index, its own tag first."""
    releases: dict[tuple[str, str], list[str]] = {}
    for entry in bundle.listed:
        is_release = entry.descriptor.media_type in INDEXES and entry.repository != INPUTS
        if entry.tag and is_release:
            releases.setdefault((entry.repository, entry.descriptor.digest), []).append(entry.tag)
    for (repository, digest), tags in releases.items():
        if len(tags) > _MOST_TAGS:  # each is judged, and nobody signed it
            raise bundle.archive.wrong(f"{repository}: {digest} has more than {_MOST_TAGS} tags")
    return releases
