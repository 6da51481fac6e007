"""The proof that belongs to an image, brought from a registry and held against trusted keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

from builder.errors import Refused
from builder.policy.gathered import OTHER, SIGNATURE, Proof
from builder.policy.statements import proof_of
from builder.proof import (
    Attachment,
    TrustedKey,
    Unusable,
    attestation_tag,
    layers_of,
    signature_tag,
    verified,
)
from builder.registry import Descriptor, NotThere, Source, WrongContent
from builder.registry.kinds import ARTIFACT_TYPES

_MOST = 1000  # things that refer to one image
_BYTES = 256 << 20  # of all proof of one image
_ONE = 32 << 20


def proofs_of(
    registry: Source, digests: Sequence[str], trusted: Sequence[TrustedKey], now: dt.datetime
) -> tuple[Proof, ...]:
    """What is said of an image's digests, and by whom; what counts for nothing has a fault."""
    found: list[Proof] = []
    left = _BYTES
    for digest in digests:
        attached: list[Attachment] = []
        for one in _attached(registry, digest):
            if isinstance(one, Proof):
                found.append(one)
                continue
            left -= sum(map(len, one.blobs.values()))
            if left < 0:
                raise Refused(f"{registry.name}@{digest}: more than {_BYTES:,} bytes of proof")
            attached.append(one)
        found += _judged(digest, attached, trusted, now)
    return tuple(found)


def _judged(
    digest: str, attached: Sequence[Attachment], trusted: Sequence[TrustedKey], now: dt.datetime
) -> Iterator[Proof]:
    verdict = verified(digest, attached, trusted, now=now)
    for one in verdict.signatures:
        for key in one.keys:
            yield Proof(kind=SIGNATURE, subjects=(digest,), key=key, digest=one.source)
    seen: set[bytes] = set()
    for said in verdict.attestations:  # each is there in two formats
        if said.payload not in seen:
            seen.add(said.payload)
            yield proof_of(said.statement, key=said.keys[0], digest=said.source)
    for rejected in verdict.rejected:
        yield Proof(kind=OTHER, fault=rejected.reason, digest=rejected.source)


def _attached(registry: Source, digest: str) -> Iterator[Attachment | Proof]:
    """The proof that refers to a digest, and that under cosign's tags.

    What is damaged is a proof with a fault, which stops nothing: anybody who may write to the
    repository can attach rubbish, and no other proof is the worse for it.
    """
    refer = registry.referrers(digest)
    if len(refer) > _MOST:
        raise Refused(f"{registry.name}@{digest}: {len(refer)} things refer to it: at most {_MOST}")
    for one in refer:
        if one.artifact_type not in ARTIFACT_TYPES.values():
            yield _attachment(registry, one, one.artifact_type)
    for tag in (signature_tag(digest), attestation_tag(digest)):
        try:
            yield _attachment(registry, tag, "")
        except NotThere:
            continue


def _attachment(
    registry: Source, target: Descriptor | str, artifact_type: str
) -> Attachment | Proof:
    source = target if isinstance(target, str) else target.digest
    try:
        manifest = registry.manifest(target)
        blobs = {}
        for layer in layers_of(manifest):
            wanted = Descriptor(media_type=layer.media_type, digest=layer.digest, size=layer.size)
            blobs[layer.digest] = registry.small_blob(wanted, _ONE)
    except (WrongContent, Unusable) as error:
        return Proof(kind=OTHER, fault=f"is damaged ({error})", digest=source)
    except NotThere as error:
        if isinstance(target, str):
            raise
        return Proof(kind=OTHER, fault=f"is not there ({error})", digest=source)
    tag = target if isinstance(target, str) else ""
    return Attachment(manifest=manifest, blobs=blobs, tag=tag, artifact_type=artifact_type)
