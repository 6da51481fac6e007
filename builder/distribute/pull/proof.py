"""Read the proof of an image from a source, and verify it with trusted keys."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from builder.model.errors import Refused
from builder.registry import Descriptor, NotFound, Source, WrongContent
from builder.registry.manifests import ARTIFACT_TYPES
from builder.system.threads import in_threads
from builder.trust.policy.predicates import proof_of
from builder.trust.policy.records import OTHER, SIGNATURE, Claim
from builder.trust.proof.attachments import MAX_CLAIMS, ProofManifest, Unusable, embedded, layers_of
from builder.trust.proof.attestations import attestation_tag, signature_tag
from builder.trust.proof.verification import Trusted, verified

_MOST = 1000  # referrers of one image
_BYTES = 128 << 20  # of all proof of one image
_LARGEST = 32 << 20  # bytes of a blob
_Content: TypeAlias = "ProofManifest | Claim | None"


def proofs_of(
    source: Source, digests: Sequence[str], trusted: Sequence[Trusted], now: dt.datetime
) -> tuple[Claim, ...]:
    """Return the proofs for an image's digests; proofs that do not count have a `fault`.

    An image has about ten manifests of proof; several are read at once.
    """
    reader = _ProofReader(source=source)
    places = [place for group in in_threads(reader.places, digests) for place in group]
    contents = in_threads(reader.read, places)
    proofs: list[Claim] = []
    for digest in digests:
        own = [item for place, item in zip(places, contents, strict=True) if place.digest == digest]
        proofs += (item for item in own if isinstance(item, Claim))
        attached = [item for item in own if isinstance(item, ProofManifest)]
        proofs += _judged(digest, attached, trusted, now)
    return tuple(proofs)


def attachments_of(source: Source, digest: str) -> tuple[ProofManifest, ...]:
    """Return all proof that is attached to a digest, by any signer.

    Damaged proof is left out. But a damaged manifest at one of cosign's tags is returned, without
    blobs: the next manifest at that tag keeps the layers that it names. Raises the errors of
    reading that manifest.
    """
    reader = _ProofReader(source=source)
    places = reader.places(digest)
    attachments = []
    for place, content in zip(places, in_threads(reader.read, places), strict=True):
        tag = place.tag
        if isinstance(content, ProofManifest):
            attachments.append(content)
        elif tag and (tag in reader.tagged or content is not None):
            manifest = reader.tagged.get(tag) or source.manifest(tag)
            attachments.append(ProofManifest(manifest=manifest, blobs={}, tag=tag))
    return tuple(attachments)


def _judged(
    digest: str, attached: Sequence[ProofManifest], trusted: Sequence[Trusted], now: dt.datetime
) -> Iterator[Claim]:
    verdict = verified(digest, attached, trusted, now=now)
    for signature in verdict.signatures:
        source, signer = signature.source, signature.signer
        for key in signature.keys:
            yield Claim(kind=SIGNATURE, subjects=(digest,), key=key, digest=source, signer=signer)
    seen: set[bytes] = set()
    for claim in verdict.attestations:  # each exists in two formats
        if claim.payload not in seen:
            seen.add(claim.payload)
            yield proof_of(claim.statement, key=claim.keys[0], digest=claim.source)
    for rejected in verdict.rejected:
        yield Claim(kind=OTHER, fault=rejected.reason, digest=rejected.source)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """A place of proof for a digest: a manifest that refers to it, or one of cosign's tags."""

    digest: str
    target: Descriptor | str

    @property
    def tag(self) -> str:
        return self.target if isinstance(self.target, str) else ""

    @property
    def source(self) -> str:
        return self.target if isinstance(self.target, str) else self.target.digest


@dataclass(kw_only=True, slots=True)
class _ProofReader:
    """Reads the proof of one image; `remaining` is the number of bytes that may still be read.

    `claims` counts the layers of the manifests so far. `tagged` has the manifests by tag.
    """

    source: Source
    remaining: int = _BYTES
    claims: int = 0
    tagged: dict[str, bytes] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def places(self, digest: str) -> list[_Place]:
        """Return the places of proof for a digest: its referrers and cosign's tags."""
        referrers = self.source.referrers(digest)
        if len(referrers) > _MOST:
            at = f"{self.source.name}@{digest}"
            raise Refused(f"{at}: {len(referrers)} referrers; the limit is {_MOST}")
        files = ARTIFACT_TYPES.values()
        proof = [referrer for referrer in referrers if referrer.artifact_type not in files]
        targets: list[Descriptor | str] = [*proof, signature_tag(digest), attestation_tag(digest)]
        return [_Place(digest=digest, target=target) for target in targets]

    def read(self, place: _Place) -> _Content:
        """Return the proof at a place; None for a tag that is missing, or that lacks a blob.

        Damaged proof is returned with a fault, not raised: anybody with write access to the
        repository can attach invalid data, and this must not affect other proof.
        """
        blobs: dict[str, bytes] = {}
        try:
            manifest = self.source.manifest(place.target)
            self._count(place, size=len(manifest))
            if place.tag:
                self.tagged[place.tag] = manifest
            known, layers = embedded(manifest), layers_of(manifest)
            self._count(place, claims=len(layers))
            for layer in layers:
                blob = known.get(layer.digest) or self.source.small_blob(layer, _LARGEST)
                blobs[layer.digest] = blob
                self._count(place, size=len(blob))
        except NotFound as error:
            fault = f"is missing ({error})"
            return None if place.tag else Claim(kind=OTHER, fault=fault, digest=place.source)
        except (WrongContent, Unusable) as error:
            return Claim(kind=OTHER, fault=f"is damaged ({error})", digest=place.source)
        return ProofManifest(manifest=manifest, blobs=blobs, tag=place.tag)

    def _count(self, place: _Place, *, claims: int = 0, size: int = 0) -> None:
        """Count claims and bytes; raise `Refused` for too many: unread proof may be a failure."""
        with self._lock:
            self.claims += claims
            self.remaining -= size
        if self.claims > MAX_CLAIMS:
            raise Refused(f"{self.source.name}: more than {MAX_CLAIMS} claims")
        if self.remaining < 0:
            at = f"{self.source.name}@{place.digest}"
            raise Refused(f"{at}: more than {_BYTES:,} bytes of proof")
