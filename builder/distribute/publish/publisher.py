"""Publish releases: a tag is set only when everything under it is uploaded and proven."""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from builder.distribute.publish.proof import AttachedProof, Prove, attach, is_settled
from builder.distribute.publish.releases import ReadyImage, ReadyRelease
from builder.model.digests import canonical_json, digest_of
from builder.registry import Descriptor, NotFound, Registry, RegistryFailed, Source
from builder.registry.manifests import (
    ARTIFACT_TYPES,
    EMPTY,
    EMPTY_CONTENT,
    INDEX,
    MANIFEST,
    TITLE,
    descriptors,
    json_object,
    referrer,
)
from builder.system.files import unnamed
from builder.system.home import Home
from builder.system.threads import in_threads

T = TypeVar("T")
R = TypeVar("R")
_ABOUT = "org.opencontainers.image."
_ROUNDS = 10  # of checks that proof was not overwritten


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRelease:
    """A published release: `images` maps architectures to the digests of manifests by format."""

    repository: str
    tag: str
    floating: tuple[str, ...]
    digest: str
    images: Mapping[str, Mapping[str, str]]


class _Sendable(Protocol):
    @property
    def recipe(self) -> str: ...
    @property
    def tags(self) -> tuple[str, ...]: ...


AnyRelease = TypeVar("AnyRelease", bound=_Sendable)


@dataclass(kw_only=True)
class ReleaseSender(ABC, Generic[AnyRelease]):
    """Sends releases to a namespace of a registry; tags are set last.

    `target` returns a recipe's repository there. `say` gets progress; `stop` ends other work.
    """

    target: Callable[[str], Registry]
    jobs: int
    say: Callable[[str], object] = lambda _: None
    stop: Callable[[], object] = lambda: None

    @abstractmethod
    def index(self, release: AnyRelease) -> tuple[bytes, str]:
        """Return a release's index of images, and its media type."""

    @abstractmethod
    def digests(self, release: AnyRelease) -> Mapping[str, Mapping[str, str]]:
        """Return the digests of manifests by format, for each architecture."""

    @abstractmethod
    def transfers(self, releases: Sequence[AnyRelease]) -> Iterator[BlobTransfer]:
        """Yield the blobs that releases need."""

    @abstractmethod
    def write(self, releases: Sequence[AnyRelease]) -> None:
        """Write all manifests, and check that their proof was not overwritten."""

    def narrowed(self, releases: Sequence[AnyRelease]) -> list[str]:
        """Return a line for each tag that would lose an architecture in the registry."""

        def lost(release: AnyRelease) -> list[str]:
            registry = self.target(release.recipe)
            index = json_object(self.index(release)[0], registry.name)
            return _lost_architectures(registry, release.tags, _architectures(index, registry.name))

        return [reason for reasons in self.each(lost, releases, releases) for reason in reasons]

    def missing(self, releases: Sequence[AnyRelease]) -> Traffic:
        """Return the traffic that sending releases would cause; nothing is sent."""
        return send_all(self.transfers(releases), jobs=self.jobs, only_look=True)

    def send(self, releases: Sequence[AnyRelease]) -> tuple[list[PublishedRelease], Traffic]:
        """Send releases; after a failure, another run sends only what is still missing."""
        traffic = send_all(self.transfers(releases), jobs=self.jobs)
        self.write(releases)
        self.each(self._tag, releases, releases)
        return [self.described(release) for release in releases], traffic

    def each(
        self, work: Callable[[T], R], items: Iterable[T], releases: Iterable[AnyRelease]
    ) -> list[R]:
        """Return the result of `work` for each item; several run at once."""

        def stop() -> None:
            self.stop()
            for release in releases:
                self.target(release.recipe).stop()

        return in_threads(work, items, jobs=self.jobs, stop=stop)

    def described(self, release: AnyRelease) -> PublishedRelease:
        """Describe a release as it is in the registry, or would be."""
        return PublishedRelease(
            repository=self.target(release.recipe).name,
            tag=release.tags[0],
            floating=release.tags[1:],
            digest=digest_of(self.index(release)[0]),
            images=self.digests(release),
        )

    def _tag(self, release: AnyRelease) -> None:
        """Set the tags of a release whose index is uploaded: its own first, then floating tags."""
        registry, (content, media_type) = self.target(release.recipe), self.index(release)
        for tag in release.tags:
            self.say(f"{registry.name}:{tag}: {digest_of(content)}")
            registry.write_manifest(content, media_type, tag)


@dataclass(kw_only=True)
class Publisher(ReleaseSender[ReadyRelease]):
    """Publishes releases of the output folder; `prove` makes their proof.

    The order is guaranteed: images by digest, then their files and proof, then indexes with their
    proof. Tags follow only when a last check finds all of it in the registry.
    """

    prove: Prove

    def index(self, release: ReadyRelease) -> tuple[bytes, str]:
        return index_of(release), INDEX

    def digests(self, release: ReadyRelease) -> Mapping[str, Mapping[str, str]]:
        return {
            image.arch: {
                "oci": image.image.digest,
                **{name: digest_of(content) for name, content in file_manifests(image).items()},
            }
            for image in release.images
        }

    def transfers(self, releases: Sequence[ReadyRelease]) -> Iterator[BlobTransfer]:
        now = {(release.recipe, release.tags[0]) for release in releases}
        for release in releases:
            registry = self.target(release.recipe)
            relatives = tuple(
                self.target(name).repository
                for name, tag in release.relatives
                if (name, tag) not in now  # releases of this run mount blobs from each other
            )
            empty = Descriptor.of(EMPTY_CONTENT, EMPTY)
            yield BlobTransfer(registry=registry, blob=empty, origin=EMPTY_CONTENT)
            for image in release.images:
                for blob, path in (*image.blobs, *image.files.values()):
                    yield BlobTransfer(
                        registry=registry, blob=blob, origin=path, relatives=relatives
                    )

    def write(self, releases: Sequence[ReadyRelease]) -> None:
        images = [(self.target(r.recipe), image) for r in releases for image in r.images]
        proven = self.each(lambda pair: self._write_image(*pair), images, releases)
        proven += self.each(self._write_index, releases, releases)
        for _ in range(_ROUNDS):
            if all(self.each(is_settled, proven, releases)):
                return
        raise RegistryFailed("other clients keep overwriting the proof; no tag was set")

    def _write_image(self, registry: Registry, image: ReadyImage) -> AttachedProof:
        self.say(f"{registry.name}: {image.arch}: {image.image.digest}")
        registry.write_manifest(image.manifest, MANIFEST)
        prove = partial(self.prove, registry, image.image.bare(), (image,))
        return attach(registry, image.image.digest, prove, list(file_manifests(image).values()))

    def _write_index(self, release: ReadyRelease) -> AttachedProof:
        registry = self.target(release.recipe)
        index = registry.write_manifest(index_of(release), INDEX)
        return attach(registry, index.digest, partial(self.prove, registry, index, release.images))


def file_manifests(image: ReadyImage) -> dict[str, bytes]:
    """Return the manifests of an image's SIF and tarball, by format."""
    manifests = {}
    for name, (blob, path) in image.files.items():
        kind = ARTIFACT_TYPES[name]
        title = f"{image.planned.identifier}{''.join(path.suffixes)}"
        layer = replace(blob, media_type=kind, annotations={TITLE: title})
        manifests[name] = referrer(layer, image.image, artifact_type=kind, annotations={})
    return manifests


def _lost_architectures(registry: Registry, tags: Sequence[str], retained: set[str]) -> list[str]:
    """Return a line for each tag with architectures, spelt as OCI does, not in `retained`."""
    lines = []
    for tag in tags:
        where = f"{registry.name}:{tag}"
        try:
            published = _architectures(registry.document(tag)[1], where)
        except NotFound:
            continue
        if lost := sorted(published - retained):
            lines.append(f"{where}: the registry also has it for {', '.join(lost)}")
    return lines


def _architectures(index: Mapping[str, object], where: str) -> set[str]:
    platforms = [entry.platform for entry in descriptors(index, "manifests", where)]
    return {platform.get("architecture", "") for platform in platforms} - {""}


def index_of(release: ReadyRelease) -> bytes:
    """Return the index of a release's images, with the annotations that all images share."""
    manifests = [json.loads(image.manifest) for image in release.images]
    first, *others = [manifest.get("annotations") or {} for manifest in manifests]
    notes = {
        name: text
        for name, text in first.items()
        if name.startswith(_ABOUT) and all(other.get(name) == text for other in others)
    }
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [image.image.as_json() for image in release.images],
            **({"annotations": notes} if notes else {}),
        }
    )


# ---- Blobs: each that the registry lacks is mounted if possible, else sent ----

THERE, MOUNTED, SENT, MISSING = "there", "mounted", "sent", "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlobTransfer:
    """A blob that a repository needs; its origin is a file, bytes, or another repository.

    `relatives` are repositories of the same registry that may have the blob.
    """

    registry: Registry
    blob: Descriptor
    origin: Path | bytes | Source
    relatives: tuple[str, ...] = ()

    def send(self) -> None:
        """Upload the blob; call this only if the repository lacks it."""
        if not isinstance(self.origin, Source):
            self.registry.write_blob(self.origin, digest=self.blob.digest, missing=True)
            return
        # `tempfile` tests its default folder by writing a file there, which may remain.
        folder = Home.of_environment().path
        folder.mkdir(parents=True, exist_ok=True)
        with unnamed(folder) as file:
            self.origin.read_blob(self.blob, file)
            self.registry.write_blob(file, digest=self.blob.digest, missing=True)

    def stop(self) -> None:
        """End the requests to its registry and its origin."""
        self.registry.stop()
        if isinstance(self.origin, Source):
            self.origin.stop()


@dataclass(kw_only=True, slots=True)
class Traffic:
    """Numbers and sizes (in bytes) of blobs, by transfer method."""

    blobs: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)


def send_all(transfers: Iterable[BlobTransfer], *, jobs: int, only_look: bool = False) -> Traffic:
    """Transfer all missing blobs, the largest first; with `only_look`, only report the methods.

    The first failure ends all transfers, and is raised.
    """
    by_digest: dict[str, dict[str, BlobTransfer]] = {}
    for transfer in transfers:
        by_digest.setdefault(transfer.blob.digest, {})[transfer.registry.name] = transfer
    groups = [list(group.values()) for group in by_digest.values()]
    groups.sort(key=lambda group: -group[0].blob.size)

    def stop() -> None:
        for transfer in itertools.chain(*groups):
            transfer.stop()

    traffic = Traffic()
    ways = in_threads(partial(_bring, only_look=only_look), groups, jobs=jobs, stop=stop)
    for group, outcomes in zip(groups, ways, strict=True):
        for how in outcomes:
            traffic.blobs[how] += 1
            traffic.sizes[how] += group[0].blob.size
    return traffic


def _bring(group: Sequence[BlobTransfer], *, only_look: bool) -> list[str]:
    """Transfer one blob to several repositories; return the method for each.

    If the first repository lacks the blob, the others probably do, too: mount it without asking.
    """
    ways: list[str] = []
    first, digest = group[0].registry.repository, group[0].blob.digest
    for transfer in group:
        registry, was_lacking = transfer.registry, bool(ways) and ways[0] != THERE
        if was_lacking and not only_look and registry.mount_blob(digest, first):
            ways.append(MOUNTED)
            continue
        if registry.has_blob(digest):
            ways.append(THERE)
            continue
        relatives = (name for name in transfer.relatives if registry.sibling(name).has_blob(digest))
        at = first if ways else next(relatives, "")
        if only_look:
            ways.append(MOUNTED if at else MISSING)
        elif at and not was_lacking and registry.mount_blob(digest, at):
            ways.append(MOUNTED)
        else:
            transfer.send()
            ways.append(SENT)
    return ways
