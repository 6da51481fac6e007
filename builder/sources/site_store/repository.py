"""A store in one repository of a registry: a tag for each key."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

from builder.model.errors import BuildImagesError
from builder.registry import (
    MANIFEST,
    Credentials,
    Descriptor,
    NotThere,
    Reference,
    Registry,
    RegistryFailed,
    connect,
)
from builder.registry.manifests import EMPTY_CONTENT
from builder.system.process import Processes

# Whoever waits for a store could build meanwhile.
_ATTEMPTS, _TIMEOUT_S = 2, (5.0, 20.0)


def repository_store(text: str, processes: Processes) -> RepositoryStore:
    """Return the store in REGISTRY/REPOSITORY; `http://` before it allows access without TLS.

    `processes` starts credential helpers.
    """
    scheme, _, name = text.rpartition("://")
    reference = Reference.parse(name)
    plain_http = [reference.registry] if scheme == "http" else []
    credentials = Credentials(processes=processes)
    return RepositoryStore(
        connect(
            reference, credentials, plain_http=plain_http, attempts=_ATTEMPTS, timeout_s=_TIMEOUT_S
        )
    )


class RepositoryStore:
    """The store in a repository."""

    def __init__(self, registry: Registry) -> None:
        self.name = registry.name
        self._registry = registry

    def manifest(self, tag: str) -> bytes | None:
        try:
            return self._registry.manifest(tag)
        except NotThere:
            return None

    def has(self, blob: Descriptor) -> bool:
        return self._registry.has_blob(blob.digest)

    def read(self, blob: Descriptor, path: Path) -> None:
        self._registry.read_blob(blob, path)

    def write(self, path: Path, blob: Descriptor) -> None:
        self._registry.write_blob(path, digest=blob.digest, missing=True)

    def set_tag(self, tag: str, manifest: bytes) -> None:
        self._registry.write_blob(EMPTY_CONTENT)  # the manifest's configuration
        self._registry.write_manifest(manifest, MANIFEST, tag)

    def note_use(self, tag: str) -> None:
        """Do nothing: registries record no use."""

    def drop(self, blob: Descriptor) -> None:
        """Do nothing: a registry checks what it stores, and few allow to delete a blob."""

    def tags(self) -> list[str]:
        return sorted(self._registry.tags())

    def used_at(self, tag: str) -> None:
        """Return None: registries record no use."""

    def remove(self, tags: Sequence[str]) -> None:
        """Remove the manifests of tags; the registry's garbage collection removes the blobs."""
        for tag in tags:
            with contextlib.suppress(NotThere):
                self._delete(self._registry.resolve(tag).digest)

    def _delete(self, digest: str) -> None:
        try:
            self._registry.request("DELETE", f"manifests/{digest}", good=(202, 200, 204)).close()
        except RegistryFailed as error:
            if error.status != HTTPStatus.METHOD_NOT_ALLOWED:
                raise
            hint = "its configuration can allow that"
            raise BuildImagesError(
                f"{self.name}: the registry does not allow deletion", hint=hint
            ) from error

    def stop(self) -> None:
        self._registry.stop()
