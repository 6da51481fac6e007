"""The proof that belongs to an image, brought from a registry and held against trusted keys."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from builder.distribute.threads import ahead
from builder.model.digests import digest_of
from builder.model.errors import Refused
from builder.registry import Descriptor, NotThere, Source, WrongContent
from builder.registry.manifests import ARTIFACT_TYPES
from builder.trust.policy.predicates import proof_of
from builder.trust.policy.records import OTHER, SIGNATURE, Claim
from builder.trust.proof.attachments import MAX_CLAIMS, BlobDescriptor, ProofManifest, Unusable
from builder.trust.proof.attestations import attestation_tag, guesses, signature_tag
from builder.trust.proof.manifests import embedded, layers_of
from builder.trust.proof.verification import Trusted, verified

_AT_ONCE = 4  # requests
_MOST = 1000  # things that refer to one image
_BYTES = 128 << 20  # of all proof of one image
_ONE = 32 << 20
_GUESS, _GUESSED = 1 << 20, 16 << 20  # of one bundle that is guessed from, and of all guesses
_Came = ProofManifest | Claim | None
T = TypeVar("T")
R = TypeVar("R")


def proofs_of(
    registry: Source, digests: Sequence[str], trusted: Sequence[Trusted], now: dt.datetime
) -> tuple[Claim, ...]:
    """Return the proofs for an image's digests; those that count for nothing have a fault.

    An image has some ten manifests of proof: a few are under way at once.
    """
    proof = _Proof(registry=registry)
    places = [place for group in _each(proof.places, digests) for place in group]
    came = proof.brought(places)
    proofs: list[Claim] = []
    for digest in digests:
        mine = [item for place, item in zip(places, came, strict=True) if place.digest == digest]
        proofs += (item for item in mine if isinstance(item, Claim))
        attached = [item for item in mine if isinstance(item, ProofManifest)]
        proofs += _judged(digest, attached, trusted, now)
    return tuple(proofs)


def attachments_of(registry: Source, digest: str) -> tuple[ProofManifest, ...]:
    """All proof that is attached to a digest, whoever made it.

    What is damaged is nothing. Only what is at one of cosign's tags counts all the same, without
    blobs, for who writes there next keeps what it names. Raises what reading its manifest does.
    """
    proof = _Proof(registry=registry)
    places = proof.places(digest)
    attachments = []
    for place, content in zip(places, proof.brought(places), strict=True):
        tag = place.tag
        if isinstance(content, ProofManifest):
            attachments.append(content)
        elif tag and (tag in proof.tagged or content is not None):
            manifest = proof.tagged.get(tag) or registry.manifest(tag)
            attachments.append(ProofManifest(manifest=manifest, blobs={}, tag=tag))
    return tuple(attachments)


def _each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the result of each item, in order; several are worked on at once."""
    futures, end = ahead(work, items, threads=_AT_ONCE)
    try:
        return [future.result() for future in futures]
    except BaseException:
        end()
        raise


def _judged(
    digest: str, attached: Sequence[ProofManifest], trusted: Sequence[Trusted], now: dt.datetime
) -> Iterator[Claim]:
    verdict = verified(digest, attached, trusted, now=now)
    for signature in verdict.signatures:
        source, signer = signature.source, signature.signer
        for key in signature.keys:
            yield Claim(kind=SIGNATURE, subjects=(digest,), key=key, digest=source, signer=signer)
    seen: set[bytes] = set()
    for claim in verdict.attestations:  # each is there in two formats
        if claim.payload not in seen:
            seen.add(claim.payload)
            yield proof_of(claim.statement, key=claim.keys[0], digest=claim.source)
    for rejected in verdict.rejected:
        yield Claim(kind=OTHER, fault=rejected.reason, digest=rejected.source)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """A place for proof of a digest: a manifest that refers to it, or a tag of cosign's."""

    digest: str
    target: Descriptor | str
    artifact_type: str = ""

    @property
    def tag(self) -> str:
        return self.target if isinstance(self.target, str) else ""

    @property
    def source(self) -> str:
        return self.target if isinstance(self.target, str) else self.target.digest


@dataclass(kw_only=True, slots=True)
class _Proof:
    """The proof of one image in a registry; `remaining` is how many bytes more are read of it.

    `claims` are the layers so far of the manifests that hold it. `tagged` are the manifests that
    were read at tags.
    """

    registry: Source
    remaining: int = _BYTES
    claims: int = 0
    tagged: dict[str, bytes] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _digests: list[str] = field(default_factory=list)
    _guessed: dict[str, bytes] = field(default_factory=dict)

    def places(self, digest: str) -> list[_Place]:
        """Return the places for proof of a digest: its referrers and cosign's tags."""
        self._digests.append(digest)
        refer = self.registry.referrers(digest)
        if len(refer) > _MOST:
            named = f"{self.registry.name}@{digest}"
            raise Refused(f"{named}: {len(refer)} things refer to it: at most {_MOST}")
        tags = signature_tag(digest), attestation_tag(digest)
        return [
            *(
                _Place(digest=digest, target=referrer, artifact_type=referrer.artifact_type)
                for referrer in refer
                if referrer.artifact_type not in ARTIFACT_TYPES.values()
            ),
            *(_Place(digest=digest, target=tag) for tag in tags),
        ]

    def brought(self, places: Sequence[_Place]) -> list[_Came]:
        """The proof at each place; None for a tag that is not there, or that lacks a blob.

        What is damaged is a proof with a fault, which stops nothing: anybody who may write to the
        repository can attach rubbish, and no other proof is the worse for it. What is at cosign's
        tags comes last: most of it is in the bundles, too, and is not fetched once more.
        """
        manifests = _each(self._manifest, places)
        came: dict[int, _Came] = {}
        for tagged in (False, True):
            numbers = [number for number, place in enumerate(places) if bool(place.tag) == tagged]
            with_blobs = _each(lambda n: self._with_blobs(places[n], manifests[n]), numbers)
            came.update(zip(numbers, with_blobs, strict=True))
            if not tagged:
                self._guess([item for item in with_blobs if isinstance(item, ProofManifest)])
        return [came[number] for number in range(len(places))]

    def _manifest(self, place: _Place) -> bytes | Claim | None:
        try:
            manifest = self._counted(place, self.registry.manifest(place.target))
        except (WrongContent, NotThere) as error:
            return self._fault(place, error)
        if place.tag:
            self.tagged[place.tag] = manifest
        return manifest

    def _with_blobs(self, place: _Place, manifest: bytes | Claim | None) -> _Came:
        if not isinstance(manifest, bytes):
            return manifest
        try:
            known = {**self._guessed, **embedded(manifest)}
            layers = self._claimed(layers_of(manifest))
            blobs = {
                layer.digest: self._counted(place, known.get(layer.digest) or self._blob(layer))
                for layer in layers
            }
        except (WrongContent, Unusable, NotThere) as error:
            return self._fault(place, error)
        return ProofManifest(
            manifest=manifest, blobs=blobs, tag=place.tag, artifact_type=place.artifact_type
        )

    def _fault(self, place: _Place, error: Exception) -> Claim | None:
        if isinstance(error, NotThere):
            fault = f"is not there ({error})"
            return None if place.tag else Claim(kind=OTHER, fault=fault, digest=place.source)
        return Claim(kind=OTHER, fault=f"is damaged ({error})", digest=place.source)

    def _guess(self, attached: Sequence[ProofManifest]) -> None:
        """Note what cosign's tags are likely to hold, as far as that is short."""
        bundles = [content for attachment in attached for content in attachment.blobs.values()]
        remaining = _GUESSED
        for content in guesses(self._digests, self.registry.name, bundles, longest=_GUESS):
            remaining -= len(content)
            if remaining < 0:
                return
            self._guessed[digest_of(content)] = content

    def _blob(self, layer: BlobDescriptor) -> bytes:
        blob = Descriptor(media_type=layer.media_type, digest=layer.digest, size=layer.size)
        return self.registry.small_blob(blob, _ONE)

    def _claimed(self, layers: Sequence[BlobDescriptor]) -> Sequence[BlobDescriptor]:
        """The same layers; raises `Refused` for too many: a failure may be among the rest."""
        with self._lock:
            self.claims += len(layers)
        if self.claims > MAX_CLAIMS:
            raise Refused(f"{self.registry.name}: more than {MAX_CLAIMS} things are claimed of it")
        return layers

    def _counted(self, place: _Place, content: bytes) -> bytes:
        with self._lock:
            self.remaining -= len(content)
        if self.remaining < 0:
            named = f"{self.registry.name}@{place.digest}"
            raise Refused(f"{named}: more than {_BYTES:,} bytes of proof")
        return content
