"""The places of a site's store: a folder that several machines mount, or a registry's repository.

In a repository, each key is a tag. The folder is an OCI layout with a file for each tag: `tags/TAG`
holds the descriptor of its manifest. The blobs are as in
https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md. Its index.json names no
image: an index would have several writers. Every file is complete when it gets its name.
"""

from __future__ import annotations

import contextlib
import errno
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path

from builder.model.digests import HashedWriter, canonical_json
from builder.model.errors import BuildImagesError, Interrupted
from builder.registry import (
    MANIFEST,
    Credentials,
    Descriptor,
    NotFound,
    Reference,
    Registry,
    RegistryFailed,
    WrongContent,
    is_digest,
)
from builder.registry.manifests import EMPTY_CONTENT, LARGEST_MANIFEST, descriptors, json_object
from builder.registry.references import read_descriptor
from builder.registry.transport import Transport
from builder.system.files import note_use, read_regular, replacing
from builder.system.process import Processes

_LAYOUT: Mapping[str, object] = {
    "oci-layout": {"imageLayoutVersion": "1.0.0"},
    "index.json": {"schemaVersion": 2, "manifests": []},
}
_CHUNK = 1 << 20
_ODD = {errno.EFBIG, errno.EINVAL, errno.EISDIR, errno.ELOOP}  # of files that are no manifests
_LEASE_S = 86400.0  # blobs without a tag stay so long: their entry may be under way


class FolderStore:
    """The store in a folder; its subfolders get the folder's mode, so that a group can share it."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder
        self._is_stopped = False

    def manifest(self, tag: str) -> bytes | None:
        self._check()
        path = self._folder / "tags" / tag
        try:
            if is_digest(tag):
                path = self._blob_folder / tag.removeprefix("sha256:")
                return read_regular(path, LARGEST_MANIFEST)
            content = read_regular(path, LARGEST_MANIFEST)
            manifest = read_descriptor(json_object(content, str(path)), str(path))
            return read_regular(self._blob(manifest), LARGEST_MANIFEST)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _ODD:
                raise WrongContent(f"{path}: {error.strerror}") from error
            raise

    def has(self, blob: Descriptor) -> bool:
        path = self._blob(blob)
        try:
            is_complete = path.stat().st_size == blob.size
        except FileNotFoundError:
            return False
        note_use(path)  # an entry that is being written may need it: `remove` spares it
        return is_complete

    def read(self, blob: Descriptor, path: Path) -> None:
        source = self._blob(blob)
        try:
            digest = self._copy(source, path)
        except FileNotFoundError as error:
            raise NotFound(f"{source}: no such blob") from error
        if digest != blob.digest:
            raise WrongContent(f"{source}: its digest is {digest}")

    def write(self, path: Path, blob: Descriptor) -> None:
        self._add(self._blob(blob), path)

    def set_tag(self, tag: str, manifest: bytes) -> None:
        for name, value in _LAYOUT.items():
            if not (self._folder / name).exists():
                self._add(self._folder / name, canonical_json(value))
        descriptor = Descriptor.of(manifest, MANIFEST)
        self._add(self._blob(descriptor), manifest)
        if tag:
            self._add(self._folder / "tags" / tag, canonical_json(descriptor.as_json()))

    def note_use(self, tag: str) -> None:
        if not is_digest(tag):
            note_use(self._folder / "tags" / tag)

    def drop(self, blob: Descriptor) -> None:
        with contextlib.suppress(OSError):  # a folder that may only be read
            self._blob(blob).unlink()

    def _check(self) -> None:
        """Raise an error if the folder is missing: it may be a file system that is not mounted."""
        if not self._folder.is_dir():
            raise BuildImagesError(f"{self._folder}: no such folder", hint="create or mount it")

    def tags(self) -> list[str]:
        self._check()
        folder = self._folder / "tags"
        paths = folder.iterdir() if folder.is_dir() else ()
        return sorted(path.name for path in paths if path.is_file() and path.name[0] != ".")

    def used_at(self, tag: str) -> float | None:
        try:
            return (self._folder / "tags" / tag).stat().st_mtime
        except FileNotFoundError:
            return None

    def remove(self, tags: Sequence[str]) -> None:
        for tag in tags:
            (self._folder / "tags" / tag).unlink(missing_ok=True)
        needed = {name for tag in self.tags() for name in self._blobs_of(tag)}
        before = time.time() - _LEASE_S
        for path in self._blob_folder.glob("*"):
            with contextlib.suppress(FileNotFoundError):  # a file that has got its name
                if path.name not in needed and path.stat().st_mtime < before:
                    path.unlink()

    def _blobs_of(self, tag: str) -> Iterator[str]:
        """Yield the names of the blobs that a tag needs, its manifest first."""
        with contextlib.suppress(WrongContent):  # damaged: nobody takes it
            content = self.manifest(tag)
            if content is not None:
                listed = descriptors(json_object(content, tag), "layers", tag)
                for blob in (Descriptor.of(content, MANIFEST), *listed):
                    yield self._blob(blob).name

    def stop(self) -> None:
        self._is_stopped = True

    @property
    def _blob_folder(self) -> Path:
        return self._folder / "blobs/sha256"

    def _blob(self, blob: Descriptor) -> Path:
        return self._blob_folder / blob.digest.removeprefix("sha256:")

    def _add(self, path: Path, content: Path | bytes) -> None:
        """Write a file, and give it its name once it is complete and on disk."""
        self._make(path.parent)
        with replacing(path, durable=True) as partial:
            if isinstance(content, bytes):
                partial.write_bytes(content)
            else:
                self._copy(content, partial)
            partial.chmod(stat.S_IMODE(self._folder.stat().st_mode) & 0o666)

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        if folder == self._folder:
            self._check()
        self._make(folder.parent)
        with contextlib.suppress(FileExistsError):  # another builder was faster
            folder.mkdir()
            folder.chmod(stat.S_IMODE(self._folder.stat().st_mode))

    def _copy(self, source: Path, target: Path) -> str:
        """Copy a file; return its digest."""
        with source.open("rb") as reader, target.open("wb") as file:
            writer = HashedWriter(file)
            while chunk := reader.read(_CHUNK):
                if self._is_stopped:
                    raise Interrupted("interrupted")
                writer.write(chunk)
        return writer.digest


# Whoever waits for a store could build meanwhile.
_ATTEMPTS, _TIMEOUT_S = 2, (5.0, 20.0)


def repository_store(text: str, processes: Processes) -> RepositoryStore:
    """Return the store in REGISTRY/REPOSITORY; `http://` before it allows access without TLS.

    `processes` starts credential helpers.
    """
    scheme, _, name = text.rpartition("://")
    reference = Reference.parse(name)
    transport = Transport(
        reference.registry,
        Credentials(processes=processes),
        plain_http=[reference.registry] if scheme == "http" else [],
        timeout_s=_TIMEOUT_S,
        attempts=_ATTEMPTS,
    )
    return RepositoryStore(Registry(transport, reference.repository))


class RepositoryStore:
    """The store in a repository."""

    def __init__(self, registry: Registry) -> None:
        self.name = registry.name
        self._registry = registry

    def manifest(self, tag: str) -> bytes | None:
        try:
            return self._registry.manifest(tag)
        except NotFound:
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
            with contextlib.suppress(NotFound):
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
