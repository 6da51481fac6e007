"""One repository of a registry, with large blobs and proof.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from builder.registry import downloads, referrers, uploads
from builder.registry.authorization import RegistryState
from builder.registry.credentials import Credentials
from builder.registry.manifests import MANIFEST
from builder.registry.references import Descriptor, Reference
from builder.registry.repository import Repository
from builder.registry.transport import Transport

OCTETS = "application/octet-stream"


class Registry(Repository):
    """A repository, with blobs of any size and the referrers of its manifests.

    `sibling` shares its connections and logins.
    """

    def sibling(self, repository: str) -> Registry:
        """Return another repository of the same registry."""
        return Registry(self.transport, repository)

    # Blobs

    def read_blob(
        self,
        blob: Descriptor,
        path: Path,
        *,
        on_bytes: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Write a blob to a file, resuming after the bytes in it, and check its digest.

        `on_bytes` gets the size of each chunk. Never are more bytes written than the blob has.
        Raises `WrongContent` and removes the file; after another failure, its bytes stay.
        """
        downloads.read_blob(self, blob, path, on_bytes)

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
        """Return the referrers of a manifest; of one artifact type, if one is named.

        From the registry's list, or from the tag `sha256-...` where it keeps none. A caller that
        takes proof from it reads each manifest, and checks that its `subject` is the digest.
        """
        return referrers.referrers(self, digest, artifact_type)

    def attach(self, content: bytes, media_type: str = MANIFEST) -> Descriptor:
        """Write a manifest that has a `subject`, so that `referrers` of that finds it."""
        return self.attach_all([content], media_type)[0]

    def attach_all(self, contents: Sequence[bytes], media_type: str = MANIFEST) -> list[Descriptor]:
        """Write several manifests; return their descriptors, in order."""
        return referrers.attach(self, contents, media_type)

    def detach(self, digest: str, digests: Collection[str]) -> None:
        """Remove referrers of a manifest, where the registry allows that: see `referring`."""
        referrers.detach(self, digest, digests)


def connect(
    reference: Reference,
    credentials: Credentials | None = None,
    *,
    plain_http: Collection[str] = (),
    wait: Callable[[float], object] | None = None,
    tell: Callable[[str], object] = lambda _: None,
    state: RegistryState | None = None,
) -> Registry:
    """Return the repository of a reference. `wait` sleeps for seconds between attempts.

    `tell` gets a line for each wait: its reason and its length.
    All clients of a repository with the same credentials may share a `state`.
    """
    transport = Transport(
        reference.registry,
        credentials or Credentials(),
        plain_http=plain_http,
        wait=wait,
        tell=tell,
        state=state,
    )
    return Registry(transport, reference.repository)
