"""Releases from one registry, or an archive, to another, with everything that refers to them.

Each byte is checked against its digest on the way. `skopeo copy` and most mirrors drop what refers
to an image, and the proof with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from builder import facts
from builder.distribute.publish.attaching import check_listed, our_turn, overwritten
from builder.distribute.publish.blobs import Traffic, Wanted, send_all
from builder.distribute.publish.pushing import Done, lost_architectures
from builder.distribute.publish.threads import in_threads
from builder.model.errors import Refused
from builder.model.predicates import BUNDLE_NOTE, CLASSIC_NOTE, TEST_RESULT, UNSIGNED_NOTE
from builder.registry import INDEXES, Descriptor, NotThere, Registry, Source, WrongContent
from builder.registry.kinds import ARTIFACT_TYPES
from builder.registry.source import blobs_of, descriptors, json_object

_CLASSIC = (".sig", ".att")  # cosign's tags: https://github.com/sigstore/cosign/blob/main/specs
_NOTES = (UNSIGNED_NOTE, BUNDLE_NOTE, CLASSIC_NOTE)
_MOST_REFERRERS = 1000  # of one image
_MOST_BYTES = 128 << 20  # of all manifests that refer to it, which are kept in memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Copied:
    """A manifest of the source. Proof has the digest that it is of as `subject`.

    `tag` is where the classic format keeps it; what has none says itself what it refers to.
    """

    descriptor: Descriptor
    content: bytes
    subject: str = ""
    tag: str = ""

    def blobs(self) -> list[Descriptor]:
        """The blobs that it names; none for an index."""
        parsed = json_object(self.content, self.descriptor.digest)
        return blobs_of(parsed, self.descriptor.digest)

    @property
    def kind(self) -> str:
        """Its artifact type; as registries list it, the type of its configuration if it has none.

        It is read from the manifest itself: a list of what refers to an image may say another.
        """
        parsed = json_object(self.content, self.descriptor.digest)
        config = parsed.get("config")
        kind = parsed.get("artifactType") or (isinstance(config, dict) and config.get("mediaType"))
        return kind if isinstance(kind, str) else ""

    @property
    def file(self) -> str:
        """The digest of the one file that it holds; empty if it holds none, or several."""
        layers = [one.digest for one in self.layers()]
        return layers[0] if len(layers) == 1 else ""

    def layers(self) -> list[Descriptor]:
        """Those of its blobs that are its layers."""
        parsed = json_object(self.content, self.descriptor.digest)
        return descriptors(parsed, "layers", self.descriptor.digest)

    def predicate_types(self) -> set[str]:
        """Of which statements it says that it holds some."""
        notes = json_object(self.content, self.descriptor.digest).get("annotations")
        some = [notes if isinstance(notes, dict) else {}, *(o.annotations for o in self.layers())]
        return {one[name] for one in some for name in _NOTES if isinstance(one.get(name), str)}


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A SIF or tarball: the image that it is of, its format, and the digest of its bytes."""

    image: str
    format: str
    digest: str


@dataclass(kw_only=True, slots=True)
class Mirrored:
    """All of one release: its index, its images, and what refers to any of them."""

    recipe: str
    tags: tuple[str, ...]
    index: Copied
    images: dict[str, Copied] = field(default_factory=dict)
    proof: list[Copied] = field(default_factory=list)

    @property
    def everything(self) -> list[Copied]:
        return [*self.images.values(), *self.proof, self.index]

    def leave_out(self, proven: Collection[File]) -> list[str]:
        """Leave out SIFs and tarballs that are not proven, with what refers to them; a line each.

        Whoever may write where they are from can have any file refer to an image.
        """
        names = {kind: name for name, kind in ARTIFACT_TYPES.items()}
        lines = dict[str, str]()
        kept = []
        for one in self.proof:  # what is referred to comes before what refers to it
            digest = one.descriptor.digest
            name = names.get(one.kind, "")
            if name and File(image=one.subject, format=name, digest=one.file) not in proven:
                lines[digest] = f"{digest} is left out: no proven {name} of {one.subject}"
            elif one.subject in lines:
                lines[digest] = f"{digest} is left out: it refers to {one.subject}"
            else:
                kept.append(one)
        self.proof = kept
        return [f"{self.recipe}:{self.tags[0]}: {line}" for line in lines.values()]

    def files(self, image: Descriptor) -> dict[str, str]:
        """The SIF and tarball of an image: the digest of its manifest, by format.

        Of several files in one format nobody knows here which is the right one: none is named.
        """
        found: dict[str, dict[str, str]] = {}
        for name, kind in ARTIFACT_TYPES.items():
            some = [one for one in self.proof if one.subject == image.digest and one.kind == kind]
            found[name] = {one.file: one.descriptor.digest for one in some}
        return {name: next(iter(some.values())) for name, some in found.items() if len(some) == 1}


def found_release(
    source: Source, recipe: str, tags: Sequence[str], architectures: Sequence[str]
) -> tuple[Mirrored | None, list[str]]:
    """A release as the source has it, and why it may not be copied, a line a reason.

    `tags` are its own and its floating ones; of those, the source's that point elsewhere are left
    out. `architectures` are those that it has to have, spelt as OCI does.
    """
    where = f"{source.name}:{tags[0]}"
    try:
        descriptor, parsed = source.document(tags[0])
    except NotThere:
        return None, [f"{where}: it is not there"]
    if descriptor.media_type not in INDEXES:
        return None, [f"{where}: it is no index of architectures"]
    content = source.manifest(descriptor)
    release = Mirrored(
        recipe=recipe,
        tags=tuple(tag for tag in tags if _is_at(source, tag, descriptor)),
        index=Copied(descriptor=descriptor, content=content),
    )
    release.proof += _referring(source, descriptor)
    reasons = []
    for image in descriptors(parsed, "manifests", where):
        arch = image.platform.get("architecture", "unknown")
        if arch in release.images:
            raise WrongContent(f"{where}: it names two images for {arch}")
        release.images[arch] = Copied(descriptor=image.bare(), content=source.manifest(image))
        proof = _referring(source, image)
        if not any(TEST_RESULT in one.predicate_types() for one in proof):
            reasons.append(f"{where}: {arch}: no evidence refers to it")
        release.proof += proof
    if lost := sorted({*architectures} - release.images.keys()):
        reasons.append(f"{where}: it is not there for {', '.join(lost)}")
    return release, reasons


def _is_at(source: Source, tag: str, index: Descriptor) -> bool:
    try:
        return source.resolve(tag).digest == index.digest
    except NotThere:
        return False


def _referring(source: Source, image: Descriptor) -> list[Copied]:
    """What refers to an image, and to that in turn, in the order in which it can be written."""
    found: dict[str, Copied] = {}
    todo, size = [image.digest], 0
    while todo:
        digest = todo.pop()
        for tag in (f"{digest.replace(':', '-')}{suffix}" for suffix in _CLASSIC):
            if there := _tagged(source, tag, digest):
                found[tag] = there
                size += len(there.content)
        for one in source.referrers(digest):
            if one.digest in found:
                continue
            content = source.manifest(one.bare())
            subject = json_object(content, one.digest).get("subject")
            if not isinstance(subject, dict) or subject.get("digest") != digest:
                raise WrongContent(f"{source.name}: {one.digest} does not refer to {digest}")
            found[one.digest] = Copied(descriptor=one, content=content, subject=digest)
            todo.append(one.digest)
            size += len(content)
            if len(found) > _MOST_REFERRERS or size > _MOST_BYTES:
                raise WrongContent(f"{source.name}: too much refers to {image.digest}")
    return list(found.values())


def _tagged(source: Source, tag: str, digest: str) -> Copied | None:
    """What is under a tag of the proof of a digest."""
    try:
        descriptor, content = source.read(tag)
    except NotThere:
        return None
    return Copied(descriptor=descriptor, content=content, subject=digest, tag=tag)


class Mirror:
    """Copies releases from one namespace to another; `target` gives a recipe's repository there."""

    def __init__(
        self,
        source: Callable[[str], Source],
        target: Callable[[str], Registry],
        *,
        jobs: int,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._source, self._target, self._jobs, self._say = source, target, jobs, say

    def narrowed(self, releases: Sequence[Mirrored]) -> list[str]:
        """Which tags of the target would lose an architecture, a line each."""
        return [
            reason
            for one in releases
            for reason in lost_architectures(self._target(one.recipe), one.tags, {*one.images})
        ]

    def missing(self, releases: Sequence[Mirrored]) -> Traffic:
        """What would be sent; nothing is changed."""
        return send_all(self._wanted(releases), jobs=self._jobs, only_look=True)

    def copy(self, releases: Sequence[Mirrored]) -> tuple[list[Done], Traffic]:
        """Copy releases, in the order in which they are published."""
        traffic = send_all(self._wanted(releases), jobs=self._jobs)
        for release in releases:
            self._write(release)
        for release in releases:
            self._check_proof(release)
        for release in releases:
            target = self._target(release.recipe)
            for tag in release.tags:
                self._say(f"{target.name}:{tag}: {release.index.descriptor.digest}")
                target.write_manifest(
                    release.index.content, release.index.descriptor.media_type, tag
                )
        return [self.described(one) for one in releases], traffic

    def _wanted(self, releases: Sequence[Mirrored]) -> Iterator[Wanted]:
        for release in releases:
            source, target = self._source(release.recipe), self._target(release.recipe)
            relatives = _to_mount_from(source, target)
            for one in release.everything:
                for blob in one.blobs():
                    yield Wanted(registry=target, blob=blob, origin=source, relatives=relatives)

    def _write(self, release: Mirrored) -> None:
        target = self._target(release.recipe)
        for one in (*release.images.values(), release.index):
            self._say(f"{target.name}: {one.descriptor.digest}")
            target.write_manifest(one.content, one.descriptor.media_type)
        in_threads(
            lambda one: self._attach(target, one),
            release.proof,
            jobs=self._jobs,
            stop=target.stop,
        )

    def _check_proof(self, release: Mirrored) -> None:
        """All proof is there, whatever other clients wrote meanwhile."""
        target = self._target(release.recipe)
        for one in release.proof:
            if one.tag and _lacking(one, _tagged(target, one.tag, one.subject)):
                raise overwritten(target, one.tag)
        referring = [one for one in release.proof if not one.tag]
        for subject in dict.fromkeys(one.subject for one in referring):
            attached = [one.descriptor for one in referring if one.subject == subject]
            check_listed(target, subject, attached)

    def _attach(self, target: Registry, one: Copied) -> None:
        if not one.tag:
            target.attach(one.content, one.descriptor.media_type)
            return
        with our_turn(target, one.subject):
            _check_kept(target, one)
            target.write_manifest(one.content, one.descriptor.media_type, one.tag)

    def described(self, release: Mirrored) -> Done:
        """What a release is in the target, or would be."""
        images: dict[str, dict[str, str]] = {}
        for oci, image in release.images.items():
            known = facts.architecture(oci)
            arch = known.name if known else oci
            images[arch] = {"oci": image.descriptor.digest, **release.files(image.descriptor)}
        return Done(
            repository=self._target(release.recipe).name,
            tag=release.tags[0],
            floating=release.tags[1:],
            digest=release.index.descriptor.digest,
            images=images,
        )


def _to_mount_from(source: Source, target: Registry) -> tuple[str, ...]:
    """The source's repository, if it is on the same registry as the target."""
    if isinstance(source, Registry) and source.transport.registry == target.transport.registry:
        return (source.repository,)
    return ()


def _lacking(one: Copied, other: Copied | None) -> set[str]:
    """The layers of some proof that another one, or nothing, has not."""
    there = {layer.digest for layer in other.layers()} if other else set()
    return {layer.digest for layer in one.layers()} - there


def _check_kept(target: Registry, one: Copied) -> None:
    """Refuse to write over proof that the source does not have."""
    there = _tagged(target, one.tag, one.subject)
    if there and (lost := _lacking(there, one)):
        where = f"{target.name}:{one.tag}"
        raise Refused(
            f"{where}: there is proof that the source lacks: {', '.join(sorted(lost))}",
            hint="remove the tag there, or copy into another namespace",
        )
