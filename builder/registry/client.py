"""One repository of a registry, with large blobs and proof.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from builder.registry import downloads, referring, uploads
from builder.registry.authorization import Learned
from builder.registry.credentials import Credentials
from builder.registry.kinds import MANIFEST
from builder.registry.references import Descriptor, Reference
from builder.registry.repository import Repository
from builder.registry.transport import Transport

OCTETS = "application/octet-stream"


class Registry(Repository):
    """A repository, with blobs of any size and what refers to its manifests.

    `sibling` shares its connections and logins.
    """

    def sibling(self, repository: str) -> Registry:
        """Another repository of the same registry."""
        return Registry(self.transport, repository)

    # Blobs

    def read_blob(
        self,
        wanted: Descriptor,
        path: Path,
        *,
        on_bytes: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Write a blob to a file, going on after what is in it already, and check its digest.

        `on_bytes` is told how many bytes came. Never are more written than the blob has. Raises
        `WrongContent`, and then the file is gone; after another failure, what came stays in it.
        """
        downloads.read_blob(self, wanted, path, on_bytes)

    def write_blob(
        self,
        source: Path | bytes,
        *,
        media_type: str = OCTETS,
        digest: str = "",
        missing: bool = False,
    ) -> Descriptor:
        """Upload a blob, unless the repository has it: see `builder.registry.uploads`."""
        return uploads.write_blob(
            self, source, media_type=media_type, digest=digest, missing=missing
        )

    # Proof

    def referrers(self, digest: str, artifact_type: str = "") -> tuple[Descriptor, ...]:
        """What refers to a manifest; of one artifact type, if one is named.

        From the registry's list, or from the tag `sha256-...` where it keeps none. Whoever takes
        proof from it reads each manifest, and checks that its `subject` is the digest.
        """
        return referring.referrers(self, digest, artifact_type)

    def attach(self, content: bytes, media_type: str = MANIFEST) -> Descriptor:
        """Write a manifest that has a `subject`, so that `referrers` of that finds it."""
        return self.attach_all([content], media_type)[0]

    def attach_all(self, contents: Sequence[bytes], media_type: str = MANIFEST) -> list[Descriptor]:
        """Write several at once; their descriptors, in order."""
        return referring.attach(self, contents, media_type)

    def detach(self, digest: str, gone: Collection[str]) -> None:
        """Remove what refers to a manifest, where the registry allows that: see `referring`."""
        referring.detach(self, digest, gone)


def connect(
    reference: Reference,
    credentials: Credentials | None = None,
    *,
    plain_http: Collection[str] = (),
    wait: Callable[[float], object] | None = None,
    tell: Callable[[str], object] = lambda _: None,
    learned: Learned | None = None,
) -> Registry:
    """The repository of a reference. `wait` sleeps for a number of seconds between attempts.

    `tell` is told of what is waited for, and how long.
    What is `learned` of a repository may be shared by all who ask for that with these credentials.
    """
    transport = Transport(
        reference.registry,
        credentials or Credentials(),
        plain_http=plain_http,
        wait=wait,
        tell=tell,
        learned=learned,
    )
    return Registry(transport, reference.repository)
