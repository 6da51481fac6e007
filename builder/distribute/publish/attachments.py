"""Proof and files, attached to an image by `subject`, or under cosign's tags.

A tag is read and written, and a registry compares nothing in between: two clients that write one at
the same time overwrite each other's proof. So what is at a tag is merged until ours is there to
stay, and looked at again before any tag of a release is set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from builder.model.digests import digest_of
from builder.model.errors import Refused
from builder.registry import MANIFEST, Descriptor, NotThere, Registry, RegistryFailed
from builder.registry.failures import Transient
from builder.registry.manifests import EMPTY_CONTENT
from builder.trust.proof.attachments import ProofManifest
from builder.trust.proof.attestations import merged

_EMPTY = digest_of(EMPTY_CONTENT)
_AGAIN = "run the same command again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proven:
    """Attachments of an image or an index: proof that has a tag, and other manifests."""

    registry: Registry
    digest: str
    tagged: Sequence[ProofManifest]
    referring: Sequence[bytes]


def attach(
    registry: Registry,
    digest: str,
    prove: Callable[[], Sequence[ProofManifest]],
    files: Sequence[bytes] = (),
) -> Proven:
    """Attach files and proof to an image or an index, and see that the registry lists them.

    What has a tag may hold what was there before, so `prove` is asked when it is our turn.
    """
    with proof_lock(registry, digest):
        proof = prove()
        _send_blobs(registry, proof)
        tagged = [attached for attached in proof if attached.tag]
        for attached in tagged:
            _write_merged(registry, attached)
        referring = [*files, *(attached.manifest for attached in proof if not attached.tag)]
        check_listed(registry, digest, registry.attach_all(referring))
        if replaced := {digest for attached in proof for digest in attached.replaces}:
            registry.detach(digest, replaced)
    return Proven(registry=registry, digest=digest, tagged=tagged, referring=referring)


def is_settled(proven: Proven) -> bool:
    """Return whether the registry still has all of it; attach anew what was written over.

    Raises `RegistryFailed` where they go on doing so.
    """
    registry = proven.registry
    with proof_lock(registry, proven.digest):
        written = [attached for attached in proven.tagged if _write_merged(registry, attached)]
        listed = _listed(registry, proven.digest) if proven.referring else set()
        lost = [manifest for manifest in proven.referring if digest_of(manifest) not in listed]
        if lost:
            check_listed(registry, proven.digest, registry.attach_all(lost))
    return not (written or lost)


def _send_blobs(registry: Registry, proof: Sequence[ProofManifest]) -> None:
    sent: set[str] = set()
    for attached in proof:
        for blob in attached.blobs.keys() - sent:
            missing = attached.fresh and blob != _EMPTY  # which is in every bundle
            registry.write_blob(attached.blobs[blob], digest=blob, missing=missing)
        sent.update(attached.blobs)


def _write_merged(registry: Registry, proof: ProofManifest) -> bool:
    """Merge proof into what is under its tag; return whether it had to be written."""
    retries, written = registry.transport.retries(), 0
    while True:
        try:
            current = registry.manifest(proof.tag)
        except NotThere:
            current = b""
        if (complete := merged(proof, current)) is None:
            return bool(written)
        if written:
            retries.wait(Transient(overwritten(registry, proof.tag)))
        for blob in complete.blobs.keys() - proof.blobs.keys():  # its list of layers
            registry.write_blob(complete.blobs[blob], digest=blob)
        registry.write_manifest(complete.manifest, MANIFEST, proof.tag)
        written += 1


def proof_lock(registry: Registry, digest: str) -> AbstractContextManager[None]:
    """Lock the tags of an image's proof against other clients of this machine."""
    return registry.transport.write_lock(f"the proof of {registry.name}@{digest}")


def overwritten(registry: Registry, tag: str) -> RegistryFailed:
    """The failure for proof that is not under its tag any more."""
    problem = "another client wrote over this proof; no tag was set"
    return RegistryFailed(f"{registry.name}:{tag}: {problem}", hint=_AGAIN)


def check_listed(registry: Registry, digest: str, attached: Sequence[Descriptor]) -> None:
    """Refuse to go on unless all that was attached is found by who looks for it."""
    listed = _listed(registry, digest) if attached else set()
    if lost := [descriptor.digest for descriptor in attached if descriptor.digest not in listed]:
        raise Refused(
            f"{registry.name}@{digest}: the registry does not list what was attached: "
            f"{', '.join(lost)}; no tag was set",
            hint=_AGAIN,
        )


def _listed(registry: Registry, digest: str) -> set[str]:
    return {descriptor.digest for descriptor in registry.referrers(digest)}
