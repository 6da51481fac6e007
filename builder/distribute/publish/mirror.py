"""Copy releases from a registry or an archive to another registry, with all of their referrers.

All content is checked against its digest on the way. `skopeo copy` and most mirrors drop the
referrers of an image, and so its proof.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from builder.distribute.publish.proof import check_listed, overwritten, proof_lock, read_or_none
from builder.distribute.publish.publisher import BlobTransfer, ReleaseSender
from builder.model.architectures import architecture
from builder.model.errors import Refused
from builder.model.exact_json import part
from builder.model.predicates import BUNDLE_NOTE, CLASSIC_NOTE, TEST_RESULT, UNSIGNED_NOTE
from builder.registry import INDEXES, Descriptor, NotFound, Registry, Source, WrongContent
from builder.registry.manifests import ARTIFACT_TYPES, blobs_of, descriptors, json_object

_CLASSIC = (".sig", ".att")  # cosign's tags: https://github.com/sigstore/cosign/blob/main/specs
_NOTES = (UNSIGNED_NOTE, BUNDLE_NOTE, CLASSIC_NOTE)
_MOST_REFERRERS = 1000  # of one image
_MOST_BYTES = 128 << 20  # of all its referrers' manifests, which are held in memory


# A SIF or tarball: the digest of its image, its format, the digest of its bytes.
File = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CopiedManifest:
    """A manifest of the source; for proof, `subject` is the digest that it refers to.

    `tag` is set for proof in cosign's classic format; other proof names its subject itself.
    """

    descriptor: Descriptor
    content: bytes
    subject: str = ""
    tag: str = ""

    @property
    def document(self) -> dict[str, object]:
        """The manifest as JSON."""
        return json_object(self.content, self.descriptor.digest)

    def blobs(self) -> list[Descriptor]:
        """Return the blobs that the manifest names; none for an index."""
        return blobs_of(self.document, self.descriptor.digest)

    def layers(self) -> list[Descriptor]:
        """Return the layers among its blobs."""
        return descriptors(self.document, "layers", self.descriptor.digest)

    @property
    def kind(self) -> str:
        """Its artifact type; without one, the type of its configuration, as registries list it.

        It is read from the manifest itself: a list of referrers may name another type.
        """
        document = self.document
        kind = document.get("artifactType") or part(document, "config", "mediaType")
        return kind if isinstance(kind, str) else ""

    @property
    def file(self) -> str:
        """The digest of its file; empty if it has no file, or several."""
        layers = self.layers()
        return layers[0].digest if len(layers) == 1 else ""

    def predicate_types(self) -> set[str]:
        """Return the predicate types that its annotations name."""
        notes = [self.document.get("annotations"), *(layer.annotations for layer in self.layers())]
        types = [part(note, name) for note in notes for name in _NOTES]
        return {kind for kind in types if isinstance(kind, str)}


@dataclass(kw_only=True, slots=True)
class Mirrored:
    """A release at the source: its index, its images, and all of their referrers."""

    recipe: str
    tags: tuple[str, ...]
    index: CopiedManifest
    images: dict[str, CopiedManifest] = field(default_factory=dict)
    proof: list[CopiedManifest] = field(default_factory=list)

    @property
    def everything(self) -> list[CopiedManifest]:
        return [*self.images.values(), *self.proof, self.index]

    def leave_out(self, proven: Collection[File]) -> list[str]:
        """Leave out SIFs and tarballs that are not proven, and their referrers; return the reasons.

        Anyone with write access to the source can attach any file to an image.
        """
        formats = {kind: name for name, kind in ARTIFACT_TYPES.items()}
        lines = dict[str, str]()
        for proof in self.proof:  # a subject comes before its referrers
            digest, name = proof.descriptor.digest, formats.get(proof.kind, "")
            if name and (proof.subject, name, proof.file) not in proven:
                lines[digest] = f"{digest} is left out: not a proven {name} of {proof.subject}"
            elif proof.subject in lines:
                lines[digest] = f"{digest} is left out: it refers to {proof.subject}"
        self.proof = [proof for proof in self.proof if proof.descriptor.digest not in lines]
        return [f"{self.recipe}:{self.tags[0]}: {line}" for line in lines.values()]

    def files(self, image: Descriptor) -> dict[str, str]:
        """Return the digests of the manifests of an image's SIF and tarball, by format.

        A format with several different files is left out, because the right file is unknown here.
        """
        files = {}
        for name, kind in ARTIFACT_TYPES.items():
            proofs = [p for p in self.proof if p.subject == image.digest and p.kind == kind]
            by_file = {proof.file: proof.descriptor.digest for proof in proofs}
            if len(by_file) == 1:
                [files[name]] = by_file.values()
        return files


def found_release(
    source: Source, recipe: str, tags: Sequence[str], architectures: Sequence[str]
) -> tuple[Mirrored | None, list[str]]:
    """Return a release as the source has it, and the reasons against copying it, a line each.

    `tags` are its own tag and its floating tags; floating tags that point elsewhere at the source
    are left out. `architectures` are the required ones, in the spelling of OCI.
    """
    where = f"{source.name}:{tags[0]}"
    try:
        descriptor, parsed = source.document(tags[0])
    except NotFound:
        return None, [f"{where}: not found"]
    if descriptor.media_type not in INDEXES:
        return None, [f"{where}: not an image index"]
    content = source.manifest(descriptor)
    release = Mirrored(
        recipe=recipe,
        tags=tuple(tag for tag in tags if read_or_none(source, tag) == (descriptor, content)),
        index=CopiedManifest(descriptor=descriptor, content=content),
        proof=_referring(source, descriptor),
    )
    reasons = []
    for image in descriptors(parsed, "manifests", where):
        arch = image.platform.get("architecture", "unknown")
        if arch in release.images:
            raise WrongContent(f"{where}: two images for {arch}")
        release.images[arch] = CopiedManifest(
            descriptor=image.bare(), content=source.manifest(image)
        )
        proof = _referring(source, image)
        if not any(TEST_RESULT in copied.predicate_types() for copied in proof):
            reasons.append(f"{where}: {arch}: no evidence refers to it")
        release.proof += proof
    if lost := sorted({*architectures} - release.images.keys()):
        reasons.append(f"{where}: no image for {', '.join(lost)}")
    return release, reasons


def _referring(source: Source, image: Descriptor) -> list[CopiedManifest]:
    """Return the direct and indirect referrers of an image, in the order to write them."""
    attached: dict[str, CopiedManifest] = {}
    todo, size = [image.digest], 0
    while todo:
        digest = todo.pop()
        for tag in (f"{digest.replace(':', '-')}{suffix}" for suffix in _CLASSIC):
            if tagged := _tagged(source, tag, digest):
                attached[tag] = tagged
                size += len(tagged.content)
        for referrer in source.referrers(digest):
            if referrer.digest in attached:
                continue
            content = source.manifest(referrer.bare())
            subject = json_object(content, referrer.digest).get("subject")
            if not isinstance(subject, dict) or subject.get("digest") != digest:
                raise WrongContent(f"{source.name}: {referrer.digest} does not refer to {digest}")
            attached[referrer.digest] = CopiedManifest(
                descriptor=referrer, content=content, subject=digest
            )
            todo.append(referrer.digest)
            size += len(content)
            if len(attached) > _MOST_REFERRERS or size > _MOST_BYTES:
                raise WrongContent(f"{source.name}: too many referrers of {image.digest}")
    return list(attached.values())


def _tagged(source: Source, tag: str, digest: str) -> CopiedManifest | None:
    if manifest := read_or_none(source, tag):
        return CopiedManifest(descriptor=manifest[0], content=manifest[1], subject=digest, tag=tag)
    return None


@dataclass(kw_only=True)
class ReleaseMirror(ReleaseSender[Mirrored]):
    """Copies releases from another namespace; `source` returns a recipe's repository there."""

    source: Callable[[str], Source]

    def index(self, release: Mirrored) -> tuple[bytes, str]:
        return release.index.content, release.index.descriptor.media_type

    def digests(self, release: Mirrored) -> Mapping[str, Mapping[str, str]]:
        images: dict[str, dict[str, str]] = {}
        for oci, image in release.images.items():
            known = architecture(oci)
            arch = known.name if known else oci
            images[arch] = {"oci": image.descriptor.digest, **release.files(image.descriptor)}
        return images

    def transfers(self, releases: Sequence[Mirrored]) -> Iterator[BlobTransfer]:
        for release in releases:
            source, target = self.source(release.recipe), self.target(release.recipe)
            relatives: tuple[str, ...] = ()
            at = target.transport.registry
            if isinstance(source, Registry) and source.transport.registry == at:
                relatives = (source.repository,)
            for copied in release.everything:
                for blob in copied.blobs():
                    yield BlobTransfer(
                        registry=target, blob=blob, origin=source, relatives=relatives
                    )

    def write(self, releases: Sequence[Mirrored]) -> None:
        for release in releases:
            target = self.target(release.recipe)
            for copied in (*release.images.values(), release.index):
                self.say(f"{target.name}: {copied.descriptor.digest}")
                target.write_manifest(copied.content, copied.descriptor.media_type)
            self.each(partial(_attach, target), release.proof, releases)
        for release in releases:
            _check_proof(self.target(release.recipe), release.proof)


def _attach(target: Registry, proof: CopiedManifest) -> None:
    if not proof.tag:
        target.attach(proof.content, proof.descriptor.media_type)
        return
    with proof_lock(target, proof.subject):
        existing = _tagged(target, proof.tag, proof.subject)
        if existing and (lost := _lacking(existing, proof)):
            where = f"{target.name}:{proof.tag}"
            raise Refused(
                f"{where}: the target has proof that the source lacks: {', '.join(sorted(lost))}",
                hint="remove the tag from the target, or copy into another namespace",
            )
        target.write_manifest(proof.content, proof.descriptor.media_type, proof.tag)


def _check_proof(target: Registry, proofs: Sequence[CopiedManifest]) -> None:
    """Check that the target has all proof, whatever other clients wrote in the meantime."""
    referring: dict[str, list[Descriptor]] = {}
    for proof in proofs:
        if not proof.tag:
            referring.setdefault(proof.subject, []).append(proof.descriptor)
        elif _lacking(proof, _tagged(target, proof.tag, proof.subject)):
            raise overwritten(target, proof.tag)
    for subject, attached in referring.items():
        check_listed(target, subject, attached)


def _lacking(proof: CopiedManifest, other: CopiedManifest | None) -> set[str]:
    """Return the digests of the layers of `proof` that `other` lacks."""
    digests = {layer.digest for layer in other.layers()} if other else set()
    return {layer.digest for layer in proof.layers()} - digests
