"""Contents of an archive: manifests with their repositories and tags, and blobs."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TypeAlias

from builder.distribute.bundle.archive import BLOCK, INDEX_FILE, LAYOUT, Archive, padded
from builder.distribute.bundle.layout import BUNDLE, REF_NAME, REPOSITORY, Bundle, BundledRepository
from builder.distribute.publish.mirror import Mirrored
from builder.distribute.publish.proof import Prove
from builder.distribute.publish.publisher import file_manifests, index_of
from builder.distribute.publish.releases import ReadyRelease
from builder.model.digests import HashedWriter, canonical_json
from builder.model.errors import BadInput, MissingPrerequisite
from builder.registry import INDEX, INDEXES, MANIFEST, Descriptor, Source, WrongContent
from builder.registry.manifests import EMPTY, EMPTY_CONTENT, json_object
from builder.system.files import unnamed
from builder.system.locks import is_at
from builder.trust.proof.attachments import ProofManifest

_MOST_TAGS = 100  # of one release
INPUTS = "build-images-inputs"  # the repository of bases, sources, packages and project
Origin: TypeAlias = "Path | bytes | Source"


class EmptyRepository(BundledRepository):
    """An empty repository, named by a recipe: the state before anything is published."""

    def __init__(self, name: str) -> None:
        super().__init__(Archive(Path(name), {}, {}), name, [])

    @property
    def name(self) -> str:
        return self.repository


@dataclass(kw_only=True, slots=True)
class ArchiveContents:
    """Contents of an archive: blobs by digest, and the entries of its `index.json`.

    `kind` is the artifact type of the index; empty for a plain image layout.
    """

    kind: str = BUNDLE
    blobs: dict[str, tuple[Descriptor, Origin]] = field(default_factory=dict)
    entries: list[Descriptor] = field(default_factory=list)

    def add_blob(self, blob: Descriptor, origin: Origin) -> None:
        """Add a blob; it will be read from the first origin that was added for it."""
        self.blobs.setdefault(blob.digest, (blob, origin))

    def add_manifest(self, content: bytes, media_type: str = MANIFEST) -> Descriptor:
        """Add a manifest that an index names, without its blobs."""
        descriptor = Descriptor.of(content, media_type)
        self.add_blob(descriptor, content)
        return descriptor

    def list_manifest(
        self, content: bytes, media_type: str, repository: str, tags: Sequence[str] = ()
    ) -> Descriptor:
        """Add a manifest, with one index entry for each tag; without tags, one entry."""
        descriptor = self.add_manifest(content, media_type)
        kind = str(json_object(content, descriptor.digest).get("artifactType") or "")
        for notes in [{REF_NAME: f"{repository}:{tag}"} for tag in tags] or [{}]:
            entry = replace(
                descriptor, artifact_type=kind, annotations={REPOSITORY: repository, **notes}
            )
            if entry not in self.entries:
                self.entries.append(entry)
        return descriptor

    def add_attached(self, repository: str, attachments: Iterable[ProofManifest]) -> None:
        """Add proof, with its blobs."""
        for attached in attachments:
            for digest, content in attached.blobs.items():
                blob = Descriptor(media_type="", digest=digest, size=len(content))
                self.add_blob(blob, content)
            tags = (attached.tag,) if attached.tag else ()
            self.list_manifest(attached.manifest, MANIFEST, repository, tags)

    def add_release(self, release: ReadyRelease, prove: Prove) -> None:
        """Add a release of the output folder, with its proof."""
        name, empty = release.recipe, EmptyRepository(release.recipe)
        self.add_blob(Descriptor.of(EMPTY_CONTENT, EMPTY), EMPTY_CONTENT)
        content = index_of(release)
        index = self.list_manifest(content, INDEX, name, release.tags)
        for image in release.images:
            self.add_manifest(image.manifest)
            for blob, path in (*image.blobs, *image.files.values()):
                self.add_blob(blob, path)
            for manifest in file_manifests(image).values():
                self.list_manifest(manifest, MANIFEST, name)
            self.add_attached(name, prove(empty, image.image.bare(), (image,)))
        self.add_attached(name, prove(empty, index, release.images))

    def add_mirrored(self, release: Mirrored, source: Source) -> None:
        """Add a release from a registry, with all of its referrers."""
        name = release.recipe
        for copied in release.everything:
            for blob in copied.blobs():
                self.add_blob(blob, source)
        for image in release.images.values():
            self.add_manifest(image.content, image.descriptor.media_type)
        index = release.index
        self.list_manifest(index.content, index.descriptor.media_type, name, release.tags)
        for proof in release.proof:
            tags = (proof.tag,) if proof.tag else ()
            self.list_manifest(proof.content, proof.descriptor.media_type, name, tags)

    def index(self) -> bytes:
        """Return the bytes of `index.json`."""
        return canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": INDEX,
                **({"artifactType": self.kind} if self.kind else {}),
                "manifests": [entry.as_json() for entry in self.entries],
            }
        )


def releases_of(bundle: Bundle) -> dict[tuple[str, str], list[str]]:
    """Return the tags of releases, their own tag first, by repository and digest of the index."""
    releases: dict[tuple[str, str], list[str]] = {}
    for entry in bundle.listed:
        is_release = entry.descriptor.media_type in INDEXES and entry.repository != INPUTS
        if entry.tag and is_release:
            releases.setdefault((entry.repository, entry.descriptor.digest), []).append(entry.tag)
    for (repository, digest), tags in releases.items():
        if len(tags) > _MOST_TAGS:  # each tag is judged, and tags are not signed
            raise bundle.archive.wrong(f"{repository}: {digest} has more than {_MOST_TAGS} tags")
    return releases


_VERSION = b'{"imageLayoutVersion":"1.0.0"}'
_PIECE = 1 << 20
_END = bytes(2 * BLOCK)
_FULL = frozenset([errno.ENOSPC, errno.EDQUOT])
OnBytes = Callable[[int], object]


def write_archive(
    target: Path, contents: ArchiveContents, *, on_bytes: OnBytes = lambda _: None
) -> tuple[int, str]:
    """Write an archive, and rename it to `target` when it is complete; return its size and SHA-256.

    An existing file or link at `target` is replaced; anything else there raises `BadInput`.
    `on_bytes` gets the number of blob bytes of each write. Raises `MissingPrerequisite` if the disk
    is full, and `WrongContent` if a file has changed; then the incomplete archive is removed.
    """
    index = contents.index()
    _check_target(target, size_of(contents, index))
    try:
        with _partial(target) as file:
            hashed = HashedWriter(file)
            _add(hashed, LAYOUT, len(_VERSION), [_VERSION])
            _add(hashed, INDEX_FILE, len(index), [index])
            for digest, (blob, origin) in sorted(contents.blobs.items()):
                name = f"blobs/sha256/{digest.partition(':')[2]}"
                _add(hashed, name, blob.size, _checked(blob, origin, target.parent, on_bytes))
            hashed.write(_END)
            return hashed.size, hashed.digest
    except OSError as error:
        if error.errno in _FULL:
            raise _full(target, size_of(contents, index)) from error
        raise


def size_of(contents: ArchiveContents, index: bytes) -> int:
    """Return the size of an archive in bytes."""
    sizes = [len(_VERSION), len(index), *(blob.size for blob, _ in contents.blobs.values())]
    return sum(BLOCK + padded(size) for size in sizes) + len(_END)


def _add(archive: HashedWriter, name: str, size: int, pieces: Iterable[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    archive.write(member.tobuf(tarfile.GNU_FORMAT))
    for piece in pieces:
        archive.write(piece)
    archive.write(bytes(-size % BLOCK))


def _checked(blob: Descriptor, origin: Origin, folder: Path, on_bytes: OnBytes) -> Iterator[bytes]:
    sha256, remaining = hashlib.sha256(), blob.size
    with contextlib.ExitStack() as held:
        if isinstance(origin, bytes):
            file: IO[bytes] = io.BytesIO(origin)
        elif isinstance(origin, Source):
            path = held.enter_context(unnamed(folder))
            origin.read_blob(blob, path)
            file = held.enter_context(path.open("rb"))
        else:
            file = held.enter_context(origin.open("rb"))
        while (piece := file.read(_PIECE)) and len(piece) <= remaining:
            remaining -= len(piece)
            sha256.update(piece)
            yield piece
            on_bytes(len(piece))
    if piece or remaining or f"sha256:{sha256.hexdigest()}" != blob.digest:
        shown = origin if isinstance(origin, Path) else blob.digest
        raise WrongContent(f"{shown}: content differs from {blob.digest}; no archive was written")


@contextlib.contextmanager
def _partial(target: Path) -> Iterator[IO[bytes]]:
    """Yield a new file beside `target`, and rename it to `target` at the end.

    The file of a killed run is removed first. Other users may write to the folder, too: the file is
    always created anew, so that no link is followed.
    """
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInput(f"{target.parent}: no such folder") from error
    except (FileExistsError, IsADirectoryError, PermissionError) as error:
        raise BadInput(f"{partial}: cannot create the file ({error.strerror})") from error
    with os.fdopen(handle, "wb") as file:
        try:
            yield file
            file.flush()
            os.fsync(handle)
            if is_at(handle, partial):
                partial.replace(target)
                return
        finally:
            if is_at(handle, partial):
                partial.unlink()
    raise BadInput(f"{target}: another build-images is writing this file")


def _check_target(target: Path, size: int) -> None:
    """Refuse a target that is not a regular file (a device would be replaced), and a full disk."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = target.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise BadInput(f"{target} exists, and is not a regular file", hint="name another file")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # reported when it is opened
        usage = shutil.disk_usage(target.parent)
        if not usage.total:  # /proc and similar file systems store no files
            raise BadInput(f"{target}: cannot create a file there", hint="name another folder")
        if usage.free < size:
            raise _full(target, size)


def _full(target: Path, size: int) -> MissingPrerequisite:
    return MissingPrerequisite(
        f"{target}: not enough disk space for {size / 1e9:.2f} GB; no archive was written",
        hint="name another disk with --output, or select fewer images",
    )
