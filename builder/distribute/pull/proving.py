"""The proof that belongs to an image, brought from a registry and held against trusted keys."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from builder.distribute.pull.ahead import ahead
from builder.model.digests import digest_of
from builder.model.errors import Refused
from builder.registry import Descriptor, NotThere, Source, WrongContent
from builder.registry.kinds import ARTIFACT_TYPES
from builder.trust.policy.gathered import OTHER, SIGNATURE, Proof
from builder.trust.policy.statements import proof_of
from builder.trust.proof import (
    Attachment,
    Trusted,
    Unusable,
    attestation_tag,
    embedded,
    guesses,
    layers_of,
    signature_tag,
    verified,
)
from builder.trust.proof import Descriptor as Named
from builder.trust.proof.values import MAX_CLAIMS

_AT_ONCE = 4  # requests
_MOST = 1000  # things that refer to one image
_BYTES = 128 << 20  # of all proof of one image
_ONE = 32 << 20
_GUESS, _GUESSED = 1 << 20, 16 << 20  # of one bundle that is guessed from, and of all guesses
_Came = Attachment | Proof | None
T = TypeVar("T")
R = TypeVar("R")


def proofs_of(
    registry: Source, digests: Sequence[str], trusted: Sequence[Trusted], now: dt.datetime
) -> tuple[Proof, ...]:
    """What is said of an image's digests, and by whom; what counts for nothing has a fault.

    An image has some ten manifests of proof: a few are under way at once.
    """
    proof = _Proof(registry=registry)
    places = [one for some in _each(proof.places, digests) for one in some]
    came = proof.brought(places)
    found: list[Proof] = []
    for digest in digests:
        mine = [one for place, one in zip(places, came, strict=True) if place.digest == digest]
        found += (one for one in mine if isinstance(one, Proof))
        attached = [one for one in mine if isinstance(one, Attachment)]
        found += _judged(digest, attached, trusted, now)
    return tuple(found)


def attachments_of(registry: Source, digest: str) -> tuple[Attachment, ...]:
    """All proof that is attached to a digest, whoever made it.

    What is damaged is nothing. Only what is at one of cosign's tags counts all the same, without
    blobs, for who writes there next keeps what it names. Raises what reading its manifest does.
    """
    proof = _Proof(registry=registry)
    places = proof.places(digest)
    found = []
    for place, one in zip(places, proof.brought(places), strict=True):
        tag = place.tag
        if isinstance(one, Attachment):
            found.append(one)
        elif tag and (tag in proof.tagged or one is not None):
            manifest = proof.tagged.get(tag) or registry.manifest(tag)
            found.append(Attachment(manifest=manifest, blobs={}, tag=tag))
    return tuple(found)


def _each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """What comes of each, in order; several are worked on at once."""
    futures, end = ahead(work, items, threads=_AT_ONCE)
    try:
        return [one.result() for one in futures]
    except BaseException:
        end()
        raise


def _judged(
    digest: str, attached: Sequence[Attachment], trusted: Sequence[Trusted], now: dt.datetime
) -> Iterator[Proof]:
    verdict = verified(digest, attached, trusted, now=now)
    for one in verdict.signatures:
        for key in one.keys:
            yield Proof(
                kind=SIGNATURE, subjects=(digest,), key=key, digest=one.source, signer=one.signer
            )
    seen: set[bytes] = set()
    for said in verdict.attestations:  # each is there in two formats
        if said.payload not in seen:
            seen.add(said.payload)
            yield proof_of(said.statement, key=said.keys[0], digest=said.source)
    for rejected in verdict.rejected:
        yield Proof(kind=OTHER, fault=rejected.reason, digest=rejected.source)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where proof of a digest may be: a manifest that refers to it, or a tag of cosign's."""

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
    """The proof of one image in a registry; `left` is how many bytes more are read of it.

    `claims` are the layers so far of the manifests that hold it. `tagged` are the manifests that
    were read at tags.
    """

    registry: Source
    left: int = _BYTES
    claims: int = 0
    tagged: dict[str, bytes] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _digests: list[str] = field(default_factory=list)
    _guessed: dict[str, bytes] = field(default_factory=dict)

    def places(self, digest: str) -> list[_Place]:
        """What refers to a digest, and cosign's tags."""
        self._digests.append(digest)
        refer = self.registry.referrers(digest)
        if len(refer) > _MOST:
            named = f"{self.registry.name}@{digest}"
            raise Refused(f"{named}: {len(refer)} things refer to it: at most {_MOST}")
        tags = signature_tag(digest), attestation_tag(digest)
        return [
            *(
                _Place(digest=digest, target=one, artifact_type=one.artifact_type)
                for one in refer
                if one.artifact_type not in ARTIFACT_TYPES.values()
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
            some = [number for number, one in enumerate(places) if bool(one.tag) == tagged]
            with_blobs = _each(lambda one: self._whole(places[one], manifests[one]), some)
            came.update(zip(some, with_blobs, strict=True))
            if not tagged:
                self._guess([one for one in with_blobs if isinstance(one, Attachment)])
        return [came[number] for number in range(len(places))]

    def _manifest(self, place: _Place) -> bytes | Proof | None:
        try:
            manifest = self._counted(place, self.registry.manifest(place.target))
        except (WrongContent, NotThere) as error:
            return self._fault(place, error)
        if place.tag:
            self.tagged[place.tag] = manifest
        return manifest

    def _whole(self, place: _Place, manifest: bytes | Proof | None) -> _Came:
        if not isinstance(manifest, bytes):
            return manifest
        try:
            there = {**self._guessed, **embedded(manifest)}
            layers = self._claimed(layers_of(manifest))
            blobs = {
                one.digest: self._counted(place, there.get(one.digest) or self._blob(one))
                for one in layers
            }
        except (WrongContent, Unusable, NotThere) as error:
            return self._fault(place, error)
        return Attachment(
            manifest=manifest, blobs=blobs, tag=place.tag, artifact_type=place.artifact_type
        )

    def _fault(self, place: _Place, error: Exception) -> Proof | None:
        if isinstance(error, NotThere):
            fault = f"is not there ({error})"
            return None if place.tag else Proof(kind=OTHER, fault=fault, digest=place.source)
        return Proof(kind=OTHER, fault=f"is damaged ({error})", digest=place.source)

    def _guess(self, attached: Sequence[Attachment]) -> None:
        """Note what cosign's tags are likely to hold, as far as that is short."""
        bundles = [content for one in attached for content in one.blobs.values()]
        left = _GUESSED
        for content in guesses(self._digests, self.registry.name, bundles, longest=_GUESS):
            left -= len(content)
            if left < 0:
                return
            self._guessed[digest_of(content)] = content

    def _blob(self, layer: Named) -> bytes:
        wanted = Descriptor(media_type=layer.media_type, digest=layer.digest, size=layer.size)
        return self.registry.small_blob(wanted, _ONE)

    def _claimed(self, layers: Sequence[Named]) -> Sequence[Named]:
        """The same layers; raises `Refused` for too many: a failure may be among the rest."""
        with self._lock:
            self.claims += len(layers)
        if self.claims > MAX_CLAIMS:
            raise Refused(f"{self.registry.name}: more than {MAX_CLAIMS} things are claimed of it")
        return layers

    def _counted(self, place: _Place, content: bytes) -> bytes:
        with self._lock:
            self.left -= len(content)
        if self.left < 0:
            named = f"{self.registry.name}@{place.digest}"
            raise Refused(f"{named}: more than {_BYTES:,} bytes of proof")
        return content
