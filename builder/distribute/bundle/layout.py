"""An image layout that holds several repositories; each is a `Source`, as in a registry.

Every manifest that has a tag, or refers to another, is listed in `index.json`. The annotation
`build-images.repository` names its repository. `org.opencontainers.image.ref.name` has its tag as
`REPOSITORY:TAG`; other clients find it by that name.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from builder.distribute.bundle.archive import (
    INDEX_FILE,
    LAYOUT,
    MOST_MANIFESTS,
    Archive,
    open_archive,
)
from builder.model.digests import is_digest
from builder.model.errors import BadInput
from builder.registry import INDEXES, Descriptor, NotFound, Source, WrongContent
from builder.registry.manifests import LARGEST_MANIFEST, blobs_of, descriptors, json_object
from builder.registry.references import is_repository, is_tag, read_descriptor
from builder.system.files import discard
from builder.system.web import printable

REPOSITORY = "build-images.repository"
REF_NAME = "org.opencontainers.image.ref.name"
BUNDLE = "application/vnd.build-images.bundle.v1"  # the artifactType of index.json
_DEPTH = 2  # of nested indexes; `bundle` writes no index that names another
_OF_PROOF = "sha256-"  # prefix of the tags under which clients store proof and lists of referrers


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A manifest of `index.json`, with its tag; `subject` is the digest that it refers to."""

    descriptor: Descriptor
    repository: str
    tag: str = ""
    subject: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """An archive whose manifests were read, and that has all their blobs."""

    archive: Archive
    listed: tuple[Listed, ...]

    def repository(self, name: str) -> BundledRepository:
        """Return the repository of that name; an empty one if the archive lacks it."""
        return BundledRepository(
            self.archive, name, [listed for listed in self.listed if listed.repository == name]
        )


@dataclass(slots=True)
class BundledRepository(Source):
    """A repository in an archive."""

    archive: Archive
    repository: str
    listed: list[Listed]
    _tags: dict[str, Descriptor] = field(init=False)
    _referring: dict[str, list[Descriptor]] = field(init=False)

    def __post_init__(self) -> None:
        self._tags = {listed.tag: listed.descriptor for listed in self.listed if listed.tag}
        self._referring = {}
        for listed in self.listed:
            self._referring.setdefault(listed.subject, []).append(listed.descriptor)

    @property
    def name(self) -> str:
        return f"{self.archive.path.name}/{self.repository}"

    def read(self, target: str | Descriptor) -> tuple[Descriptor, bytes]:
        if isinstance(target, Descriptor):
            return target, self.small_blob(target)
        if descriptor := self._tags.get(target):
            return descriptor, self.small_blob(descriptor)
        if not is_digest(target) or target not in self.archive.blobs:
            raise NotFound(f"{self.name}: {target} is not in the archive")
        content = self.archive.small(target)
        media_type = str(json_object(content, target).get("mediaType", ""))
        return Descriptor.of(content, media_type), content

    def small_blob(self, blob: Descriptor, limit: int = LARGEST_MANIFEST) -> bytes:
        self.archive.check_size(blob)
        return self.archive.small(blob.digest, limit)

    def read_blob(self, blob: Descriptor, path: Path) -> None:
        self.archive.check_size(blob)
        try:
            with path.open("wb") as file:
                file.writelines(self.archive.pieces(blob.digest))
        except WrongContent:
            discard(path)
            raise

    def referrers(self, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
        referrers = self._referring.get(digest, [])
        return tuple(item for item in referrers if artifact_type in {"", item.artifact_type})

    def stop(self) -> None:
        self.archive.stop()

    def check(self) -> None:
        self.archive.check()


def opened(path: Path) -> Bundle:
    """Open an archive of `bundle`: read every manifest, and check that every blob is present.

    Raises `BadInput` for any other file, and `WrongContent` for a damaged archive.
    """
    archive = open_archive(path)
    if archive.document(LAYOUT).get("imageLayoutVersion") != "1.0.0":
        raise BadInput(f"{path}: unknown image layout version in {LAYOUT}")
    index = archive.document(INDEX_FILE)
    if index.get("artifactType") != BUNDLE:
        hint = "build-images bundle writes bundles; for other archives, use skopeo"
        raise BadInput(f"{path}: not a bundle, but another image layout", hint=hint)
    entries = index.get("manifests")
    if not isinstance(entries, list) or len(entries) > MOST_MANIFESTS:
        raise archive.wrong(
            f"{INDEX_FILE}: list of manifests missing, or longer than {MOST_MANIFESTS}"
        )
    known: dict[str, tuple[str, str]] = {}
    listed: dict[tuple[str, str], Listed] = {}
    for entry in entries:
        descriptor = read_descriptor(entry, f"{path}: {INDEX_FILE}")
        repository, tag = _place(archive, descriptor)
        kind, subject = _checked(archive, descriptor, known)
        key = repository, tag or descriptor.digest
        if key in listed:
            raise archive.wrong(f"{repository}: duplicate entry: {key[1]}")
        listed[key] = Listed(
            descriptor=dataclasses.replace(descriptor.bare(), artifact_type=kind),
            repository=repository,
            tag=tag,
            subject=subject,
        )
    return Bundle(archive=archive, listed=tuple(listed.values()))


def _place(archive: Archive, entry: Descriptor) -> tuple[str, str]:
    """Return the repository and the tag that an entry names; the tag is empty if it has none.

    `index.json` is not signed, and these names become names of folders and parts of requests, so
    they are checked. The name of a recipe has no slash.
    """
    repository = entry.annotations.get(REPOSITORY, "")
    ref = entry.annotations.get(REF_NAME, "")
    name, _, tag = ref.partition(":")
    where = f"{INDEX_FILE}: {entry.digest}"
    if not is_repository(repository) or "/" in repository or (ref and name != repository):
        raise archive.wrong(f"{where}: missing or invalid repository name")
    if ref and not is_tag(tag):
        raise archive.wrong(f'{where}: "{printable(tag)}" is not a tag')
    if tag.startswith(_OF_PROOF) and entry.media_type in INDEXES:
        raise archive.wrong(f"{where}: {tag} is a tag for proof, but this is an image index")
    return repository, tag


def _checked(
    archive: Archive, descriptor: Descriptor, known: dict[str, tuple[str, str]], depth: int = 0
) -> tuple[str, str]:
    """Return a manifest's artifact type and its subject's digest; each manifest is read once.

    Check that its blobs are in the archive; for an index, also those of its images.
    """
    digest = descriptor.digest
    if depth > _DEPTH:
        raise archive.wrong(f"{digest}: more than {_DEPTH} nested indexes")
    archive.check_size(descriptor)
    if checked := known.get(digest):
        return checked
    manifest = json_object(archive.small(digest), digest)
    for blob in blobs_of(manifest, digest):
        archive.check_size(blob)
    for below in descriptors(manifest, "manifests", digest):
        _checked(archive, below, known, depth + 1)
    kind, subject = str(manifest.get("artifactType") or ""), manifest.get("subject")
    known[digest] = kind, read_descriptor(subject, digest).digest if subject else ""
    return known[digest]
