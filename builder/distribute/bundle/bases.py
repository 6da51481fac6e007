"""Base images of registries: what a digest names for one architecture, blob by blob.

In an archive of `bundle` they are blobs among others; in the builder's home each is an OCI archive
of its own, which engines read as they do that of a base which was made here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.build.base_store import StoredBase, staging
from builder.distribute.bundle.archive import INDEX_FILE, open_archive
from builder.distribute.bundle.contents import Contents, Origin, write_archive
from builder.distribute.bundle.layout import Bundle, Repository, json_of
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import BadInput
from builder.model.records import write
from builder.registry import MANIFESTS, Descriptor, Reference, Source, WrongContent
from builder.registry.manifests import blobs_of, descriptors
from builder.system.locks import locked


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistryBase:
    """A base of a registry, read from `source`; its blobs are there by their digests.

    `name` is its reference by digest, without a site's mirror. `manifest` is that of its
    architecture, with its bytes; `blobs` are its configuration and its layers, each once.
    """

    name: str
    arch: str
    manifest: Descriptor
    content: bytes
    blobs: tuple[Descriptor, ...]
    source: Source

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return self.manifest.size + sum(blob.size for blob in self.blobs)

    @property
    def files(self) -> Mapping[str, tuple[Descriptor, Origin]]:
        """The manifest and the blobs, by digest, and where each is read."""
        blobs: dict[str, tuple[Descriptor, Origin]] = {
            blob.digest: (blob, self.source) for blob in self.blobs
        }
        return {self.manifest.digest: (self.manifest, self.content), **blobs}


def read_base(source: Source, name: str, arch: str, target: str | Descriptor) -> RegistryBase:
    """Return a base by the digest, or the descriptor, of its manifest.

    Raises `WrongContent` for what is no image of that architecture, and what the source fails with.
    """
    descriptor, content = source.read(target)
    manifest = source.object_of(content, descriptor.digest, "manifest")
    if descriptor.media_type not in MANIFESTS or "config" not in manifest:
        raise source.wrong(descriptor.digest, "it is not the manifest of one architecture's image")
    blobs = blobs_of(manifest, descriptor.digest)
    config = source.small_blob(blobs[0])
    about = source.object_of(config, blobs[0].digest, "configuration of an image")
    if (actual := about.get("architecture")) != ARCHITECTURES[arch].oci:
        raise source.wrong(descriptor.digest, f"this base is for {actual!r}, and not for {arch}")
    return RegistryBase(
        name=name,
        arch=arch,
        manifest=descriptor,
        content=content,
        blobs=tuple({blob.digest: blob.bare() for blob in blobs}.values()),
        source=source,
    )


def keep_base(base: RegistryBase, store: Path) -> None:
    """Put a base into the store, unless it is there; every blob is checked on the way.

    `store` is that of bases which are made here: a base is found there by its digest.
    """
    title = f"{Reference.parse(base.name).repository.rpartition('/')[2]}-{base.arch}"
    folder = f"{title}-{base.manifest.digest.partition(':')[2][:12]}"
    with locked(store, folder):
        if _is_complete(base, store / folder / f"{title}.oci.tar"):
            return
        with staging(store, folder) as partial:
            stored = StoredBase(
                name=base.name,
                arch=base.arch,
                key="",
                archive=partial / f"{title}.oci.tar",
                digest=base.manifest.digest,
                made="",
            )
            contents = Contents(kind="", entries=[base.manifest], blobs=dict(base.files))
            write_archive(stored.archive, contents)
            (partial / "base.json").write_text(json.dumps(write(stored), indent=1))


def base_of_store(stored: StoredBase, name: str) -> RegistryBase:
    """Return a base that `keep_base` has put into the store."""
    archive = open_archive(stored.archive)
    source = Repository(archive, "base", [])
    [manifest] = descriptors(json_of(archive, INDEX_FILE), "manifests", source.name)
    return read_base(source, name, stored.arch, manifest)


def _is_complete(base: RegistryBase, archive: Path) -> bool:
    """Return whether the archive is complete, and beside it the record that builds need."""
    try:
        record = json.loads((archive.parent / "base.json").read_text())
        bundle = Bundle(archive=open_archive(archive), listed=())
        bundle.check()
    except (BadInput, WrongContent, OSError, ValueError):
        return False
    is_of_it = isinstance(record, dict) and record.get("digest") == base.manifest.digest
    return is_of_it and bundle.archive.blobs.keys() == base.files.keys()
