"""Publishes releases: what is under a tag is there, and proven, before the tag is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from builder.distribute.publish.attachments import Proven, attach, is_settled
from builder.distribute.publish.blobs import BlobTransfer, Traffic, send_all
from builder.distribute.publish.proof import Prove
from builder.distribute.publish.releases import Ready, Release
from builder.distribute.threads import in_threads
from builder.model.digests import digest_of
from builder.registry import Descriptor, NotThere, Registry, RegistryFailed
from builder.registry.manifests import (
    ARTIFACT_TYPES,
    EMPTY,
    EMPTY_CONTENT,
    INDEX,
    MANIFEST,
    TITLE,
    as_bytes,
    referrer,
)

T = TypeVar("T")
R = TypeVar("R")
_ABOUT = "org.opencontainers.image."
_ROUNDS = 10  # of looking whether proof is there to stay


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A published release: `images` maps an architecture to digests, by what they are of."""

    repository: str
    tag: str
    floating: tuple[str, ...]
    digest: str
    images: Mapping[str, Mapping[str, str]]


class Publisher:
    """Publishes below a namespace of a registry.

    `prove` makes what is attached as proof. `repository` gives a recipe's repository. `say` tells
    how far it is; `stop` ends what `prove` has under way.
    """

    def __init__(
        self,
        repository: Callable[[str], Registry],
        prove: Prove,
        *,
        jobs: int,
        say: Callable[[str], object] = lambda _: None,
        stop: Callable[[], object] = lambda: None,
    ) -> None:
        self._repository, self._prove = repository, prove
        self._jobs, self._say, self._stop = jobs, say, stop

    def narrowed(self, releases: Sequence[Release]) -> list[str]:
        """Return a line for each tag that would lose an architecture in the registry."""

        def lost(release: Release) -> list[str]:
            retained = {str(image.image.platform.get("architecture")) for image in release.images}
            registry = self._repository(release.recipe)
            return lost_architectures(registry, (release.tag, *release.floating), retained)

        return [reason for reasons in self._each(lost, releases, releases) for reason in reasons]

    def missing(self, releases: Sequence[Release]) -> Traffic:
        """Return the traffic of a publication; nothing is changed."""
        return send_all(self._transfers(releases), jobs=self._jobs, only_look=True)

    def publish(self, releases: Sequence[Release]) -> tuple[list[Done], Traffic]:
        """Publish releases; a rerun after any failure sends what is missing.

        The order is the promise: images by digest, then their files and proof, which are looked for
        once more, then indexes with theirs, and tags when all of it is there to stay.
        """
        traffic = send_all(self._transfers(releases), jobs=self._jobs)
        images = [(self._repository(r.recipe), image) for r in releases for image in r.images]
        proven = self._each(lambda pair: self._image(*pair), images, releases)
        proven += self._each(self._index, releases, releases)
        self._settle(proven, releases)
        self._each(self._tag, releases, releases)
        return [self.described(release) for release in releases], traffic

    def _each(
        self, work: Callable[[T], R], things: Iterable[T], releases: Iterable[Release]
    ) -> list[R]:
        """Return the result of `work` for each thing; several are done at once."""

        def stop() -> None:
            self._stop()
            for release in releases:
                self._repository(release.recipe).transport.sleep.stop()

        return in_threads(work, things, jobs=self._jobs, stop=stop)

    def described(self, release: Release) -> Done:
        """Describe a release as it is in the registry, or would be."""
        kinds = {image.arch: file_manifests(image) for image in release.images}
        return Done(
            repository=self._repository(release.recipe).name,
            tag=release.tag,
            floating=release.floating,
            digest=digest_of(index_of(release)),
            images={
                image.arch: {
                    "oci": image.image.digest,
                    **{name: digest_of(content) for name, content in kinds[image.arch].items()},
                }
                for image in release.images
            },
        )

    def _transfers(self, releases: Sequence[Release]) -> Iterator[BlobTransfer]:
        now = {(r.recipe, r.tag) for r in releases}  # it is known what these will have
        for release in releases:
            registry = self._repository(release.recipe)
            relatives = tuple(
                self._repository(name).repository
                for name, tag in release.relatives
                if (name, tag) not in now
            )
            empty = Descriptor.of(EMPTY_CONTENT, EMPTY)
            yield BlobTransfer(registry=registry, blob=empty, origin=EMPTY_CONTENT)
            for image in release.images:
                for blob in (*image.blobs, *image.files.values()):
                    yield BlobTransfer(
                        registry=registry,
                        blob=blob.descriptor,
                        origin=blob.path,
                        relatives=relatives,
                    )

    def _settle(self, proven: Sequence[Proven], releases: Sequence[Release]) -> None:
        """Look at all proof until nothing of it had to be written again."""
        for _ in range(_ROUNDS):
            if all(self._each(is_settled, proven, releases)):
                return
        raise RegistryFailed("other clients go on writing over the proof; no tag was set")

    def _image(self, registry: Registry, image: Ready) -> Proven:
        """Write an image by its digest, with its files and its proof."""
        self._say(f"{registry.name}: {image.arch}: {image.image.digest}")
        registry.write_manifest(image.manifest, MANIFEST)
        prove = partial(self._prove, registry, image.image.bare(), (image,))
        return attach(registry, image.image.digest, prove, list(file_manifests(image).values()))

    def _index(self, release: Release) -> Proven:
        registry = self._repository(release.recipe)
        index = registry.write_manifest(index_of(release), INDEX)
        return attach(registry, index.digest, partial(self._prove, registry, index, release.images))

    def _tag(self, release: Release) -> None:
        """Set the tags of a release whose index is there; the floating ones follow its own."""
        registry, content = self._repository(release.recipe), index_of(release)
        for tag in (release.tag, *release.floating):
            self._say(f"{registry.name}:{tag}: {digest_of(content)}")
            registry.write_manifest(content, INDEX, tag)


def file_manifests(image: Ready) -> dict[str, bytes]:
    """Return the manifests of an image's SIF and tarball, by format."""
    manifests = {}
    for name, blob in image.files.items():
        kind = ARTIFACT_TYPES[name]
        layer = Descriptor(
            media_type=kind,
            digest=blob.descriptor.digest,
            size=blob.descriptor.size,
            annotations={TITLE: f"{image.identifier}{''.join(blob.path.suffixes)}"},
        )
        manifests[name] = referrer(layer, image.image, artifact_type=kind, annotations={})
    return manifests


def lost_architectures(registry: Registry, tags: Sequence[str], retained: set[str]) -> list[str]:
    """Return a line for each tag with architectures, spelt as OCI does, not in `retained`."""
    lines = []
    for tag in tags:
        try:
            manifests = registry.document(tag)[1].get("manifests")
        except NotThere:
            continue
        entries = manifests if isinstance(manifests, list) else []
        platforms = [Descriptor.read(entry, f"{registry.name}:{tag}").platform for entry in entries]
        published = {platform.get("architecture", "") for platform in platforms} - {""}
        if lost := sorted(published - retained):
            lines.append(f"{registry.name}:{tag}: it is there for {', '.join(lost)}, too")
    return lines


def index_of(release: Release) -> bytes:
    """Return the index of a release's images, with the annotations that all of them have."""
    manifests = [json.loads(image.manifest) for image in release.images]
    first, *others = [manifest.get("annotations") or {} for manifest in manifests]
    notes = {
        name: text
        for name, text in first.items()
        if name.startswith(_ABOUT) and all(other.get(name) == text for other in others)
    }
    return as_bytes(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [image.image.as_json() for image in release.images],
            **({"annotations": notes} if notes else {}),
        }
    )
