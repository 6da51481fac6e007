"""What belongs to an image, attached to it: by `subject`, or under cosign's tags."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from builder.digests import digest_of
from builder.errors import Refused
from builder.home import Home
from builder.locks import locked
from builder.registry import MANIFEST, Descriptor, Registry, RegistryFailed
from builder.registry.kinds import EMPTY_CONTENT

_EMPTY = digest_of(EMPTY_CONTENT)


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


def attach(
    registry: Registry,
    digest: str,
    prove: Callable[[], Sequence[Attached]],
    files: Sequence[bytes] = (),
) -> None:
    """Attach files and proof to an image or an index, and see that the registry lists them.

    What has a tag may hold what was there before, so `prove` is asked when it is our turn.
    """
    referring, replaced, sent = [*files], set[str](), set[str]()
    with our_turn(registry, digest):
        for one in prove():
            replaced.update(one.replaces)
            for blob in one.blobs.keys() - sent:
                missing = one.fresh and blob != _EMPTY  # which is in every bundle
                registry.write_blob(one.blobs[blob], digest=blob, missing=missing)
            sent.update(one.blobs)
            if one.tag:
                write_tagged(registry, one.manifest, MANIFEST, one.tag)
            else:
                referring.append(one.manifest)
        check_listed(registry, digest, registry.attach_all(referring))
        if replaced:
            registry.detach(digest, replaced)


@contextlib.contextmanager
def our_turn(registry: Registry, digest: str) -> Iterator[None]:
    """Those of this machine that write the tags of an image's proof take turns."""
    name = digest_of(f"proof of {registry.name}@{digest}".encode()).partition(":")[2]
    with locked(Home.of_environment().path / "registries", name):
        yield


def write_tagged(registry: Registry, manifest: bytes, media_type: str, tag: str) -> None:
    """Write proof under a tag; raises `RegistryFailed` if another client wrote over it."""
    written = registry.write_manifest(manifest, media_type, tag)
    if registry.resolve(tag).digest != written.digest:
        raise RegistryFailed(
            f"{registry.name}:{tag}: another client wrote over this proof; no tag was set",
            hint="run the same command again",
        )


def check_listed(registry: Registry, digest: str, attached: Sequence[Descriptor]) -> None:
    """Refuse to go on unless all that was attached is found by who looks for it."""
    there = {one.digest for one in registry.referrers(digest)} if attached else set()
    if lost := [one.digest for one in attached if one.digest not in there]:
        raise Refused(
            f"{registry.name}@{digest}: the registry does not list what was attached: "
            f"{', '.join(lost)}; no tag was set",
            hint="run the same command again",
        )
