"""What belongs to an image, attached to it: by `subject`, or under cosign's tags.

A tag is read and written, and a registry compares nothing in between: two clients that write one at
the same time overwrite each other's proof. So what is at a tag is merged until ours is there to
stay, and looked at again before any tag of a release is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from builder.model.digests import digest_of
from builder.model.errors import Refused
from builder.registry import MANIFEST, Descriptor, NotThere, Registry, RegistryFailed
from builder.registry.failures import Transient
from builder.registry.kinds import EMPTY_CONTENT

_EMPTY = digest_of(EMPTY_CONTENT)
_AGAIN = "run the same command again"


class Attached(Protocol):
    """Proof as it is pushed: a manifest, the blobs that it names, and a tag if it has one.

    What has no tag names an image as its `subject`. It `replaces` manifests of other such proof, by
    their digests. What is `fresh` is the first of an image: its blobs are nowhere yet.
    """

    @property
    def manifest(self) -> bytes: ...
    @property
    def blobs(self) -> Mapping[str, bytes]: ...
    @property
    def tag(self) -> str: ...
    @property
    def replaces(self) -> tuple[str, ...]: ...
    @property
    def fresh(self) -> bool: ...
    def merged(self, there: bytes) -> Attached | None:
        """This proof with what is at its tag now; None where that has all of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proven:
    """What was attached to an image or an index: proof that has a tag, and other manifests."""

    registry: Registry
    digest: str
    tagged: Sequence[Attached]
    referring: Sequence[bytes]


def attach(
    registry: Registry,
    digest: str,
    prove: Callable[[], Sequence[Attached]],
    files: Sequence[bytes] = (),
) -> Proven:
    """Attach files and proof to an image or an index, and see that the registry lists them.

    What has a tag may hold what was there before, so `prove` is asked when it is our turn.
    """
    with our_turn(registry, digest):
        made = prove()
        _send_blobs(registry, made)
        tagged = [one for one in made if one.tag]
        for one in tagged:
            _write_merged(registry, one)
        referring = [*files, *(one.manifest for one in made if not one.tag)]
        check_listed(registry, digest, registry.attach_all(referring))
        if replaced := {digest for one in made for digest in one.replaces}:
            registry.detach(digest, replaced)
    return Proven(registry=registry, digest=digest, tagged=tagged, referring=referring)


def is_settled(proven: Proven) -> bool:
    """Whether all that was attached is there still; what other clients wrote over is attached anew.

    Raises `RegistryFailed` where they go on doing so.
    """
    registry = proven.registry
    with our_turn(registry, proven.digest):
        written = [one for one in proven.tagged if _write_merged(registry, one)]
        there = (
            {one.digest for one in registry.referrers(proven.digest)} if proven.referring else ()
        )
        lost = [one for one in proven.referring if digest_of(one) not in there]
        if lost:
            check_listed(registry, proven.digest, registry.attach_all(lost))
    return not (written or lost)


def _send_blobs(registry: Registry, made: Sequence[Attached]) -> None:
    sent: set[str] = set()
    for one in made:
        for blob in one.blobs.keys() - sent:
            missing = one.fresh and blob != _EMPTY  # which is in every bundle
            registry.write_blob(one.blobs[blob], digest=blob, missing=missing)
        sent.update(one.blobs)


def _write_merged(registry: Registry, one: Attached) -> bool:
    """Have proof under its tag, with what others have there; whether it had to be written."""
    retries, written = registry.transport.retries(), 0
    while (made := one.merged(_manifest_at(registry, one.tag))) is not None:
        if written:
            retries.wait(Transient(overwritten(registry, one.tag)))
        for blob in made.blobs.keys() - one.blobs.keys():  # its list of layers
            registry.write_blob(made.blobs[blob], digest=blob)
        registry.write_manifest(made.manifest, MANIFEST, one.tag)
        written += 1
    return bool(written)


def _manifest_at(registry: Registry, tag: str) -> bytes:
    """The manifest under a tag; empty if there is none."""
    try:
        return registry.manifest(tag)
    except NotThere:
        return b""


@contextlib.contextmanager
def our_turn(registry: Registry, digest: str) -> Iterator[None]:
    """Those of this machine that write the tags of an image's proof take turns."""
    shown = f"the proof of {registry.name}@{digest}"
    with registry.transport.write_lock(digest_of(shown.encode()).partition(":")[2], shown):
        yield


def overwritten(registry: Registry, tag: str) -> RegistryFailed:
    """The failure for proof that is not under its tag any more."""
    problem = "another client wrote over this proof; no tag was set"
    return RegistryFailed(f"{registry.name}:{tag}: {problem}", hint=_AGAIN)


def check_listed(registry: Registry, digest: str, attached: Sequence[Descriptor]) -> None:
    """Refuse to go on unless all that was attached is found by who looks for it."""
    there = {one.digest for one in registry.referrers(digest)} if attached else set()
    if lost := [one.digest for one in attached if one.digest not in there]:
        raise Refused(
            f"{registry.name}@{digest}: the registry does not list what was attached: "
            f"{', '.join(lost)}; no tag was set",
            hint=_AGAIN,
        )
