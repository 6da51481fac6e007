"""Entries of a site's store: folders under a key, as OCI artifacts with a blob for each file."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar

import zstandard

from builder.model.digests import canonical_json, digest_of, digest_of_file
from builder.model.errors import (
    BuildImagesError,
    Interrupted,
    MissingPrerequisite,
    TemporaryFailure,
)
from builder.registry import (
    MANIFEST,
    Denied,
    Descriptor,
    NotFound,
    RegistryFailed,
    WrongContent,
    is_digest,
)
from builder.registry.manifests import (
    EMPTY,
    EMPTY_CONTENT,
    LARGEST_MANIFEST,
    TITLE,
    descriptors,
    json_object,
)
from builder.system.compression import DAMAGED
from builder.system.files import temporary_folder
from builder.system.threads import AT_ONCE

ENTRY = "application/vnd.build-images.store-entry.v1"
_FILE = "application/octet-stream"
_PACKED = "application/vnd.build-images.file.v1+zstd"
_MODE = "build-images.mode"
_OCTAL = re.compile(r"[0-7]{1,3}")
KINDS = frozenset({"base", "native", "stage", "packed", "image", "project"})  # what tags begin with
# Errors of a path or a file in an entry, and not of the store.
_OF_ENTRY = {errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR}
# Refusals of a folder: no rights, no space, no such folder.
_REFUSALS = {*(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT)}
CREATED = "org.opencontainers.image.created"
_LEVEL = 3  # of Zstandard: 0.2 s for a base's layer of 130 MB

T = TypeVar("T")
R = TypeVar("R")


class StorePlace(Protocol):
    """The place of a store. All threads may share a value.

    Every method may raise errors of the registry (`builder.registry.failures`) or `OSError`.
    """

    name: str

    def manifest(self, tag: str) -> bytes | None:
        """Return the manifest of a tag or of a digest; None if there is none."""

    def has(self, blob: Descriptor) -> bool:
        """Return whether a blob is there."""

    def read(self, blob: Descriptor, path: Path) -> None:
        """Write a blob to a new file; raises `WrongContent` if its digest differs."""

    def write(self, path: Path, blob: Descriptor) -> None:
        """Add a blob from a file."""

    def set_tag(self, tag: str, manifest: bytes) -> None:
        """Add a manifest, and let a tag name it. All its blobs must be there.

        An empty tag adds the manifest alone, which its digest names.
        """

    def note_use(self, tag: str) -> None:
        """Note that a tag was used now, if the place records that."""

    def drop(self, blob: Descriptor) -> None:
        """Remove a damaged blob, so that it is written again."""

    def tags(self) -> list[str]:
        """Return all tags."""

    def used_at(self, tag: str) -> float | None:
        """Return when a tag was last used, in seconds since 1970; None if that is not recorded."""

    def remove(self, tags: Sequence[str]) -> None:
        """Remove tags, and the blobs that no other tag needs if the place does that itself."""

    def stop(self) -> None:
        """End the requests of other threads; they raise `Interrupted`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryFile:
    """A file of an entry: its path in the folder, its mode, and its blob."""

    path: str
    mode: int
    blob: Descriptor

    @classmethod
    def read(cls, blob: Descriptor, where: str) -> EntryFile:
        """Return the file of an untrusted descriptor; its path lies in the folder."""
        path, mode = blob.annotations.get(TITLE, ""), blob.annotations.get(_MODE, "")
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or {"..", "\0"} & {*parts, *path}:
            raise WrongContent(f"{where}: not the path of a file: {path!r}")
        if not _OCTAL.fullmatch(mode):
            raise WrongContent(f"{where}: {path}: not a mode: {mode!r}")
        return cls(path=path, mode=int(mode, 8), blob=blob.bare())

    def as_json(self) -> dict[str, object]:
        """Return its descriptor in the entry's manifest."""
        annotations = {TITLE: self.path, _MODE: f"{self.mode:o}"}
        return replace(self.blob, annotations=annotations).as_json()


class SiteStore:
    """The store of a site, or none. A failure in it never fails a build.

    `say` receives a line for each failure. After a failure to write, nothing more is added; after
    one to read, other than of a single entry, nothing more is taken. `scratch` is for files that
    are not complete. Unless it `tags`, entries get no tag; `added` has their digests by tag.
    `failure` is the last one that was not of a single entry.
    """

    def __init__(
        self,
        place: StorePlace | None = None,
        scratch: Path = Path(),
        say: Callable[[str], object] = lambda _: None,
        *,
        tags: bool = True,
    ) -> None:
        self._place, self._scratch, self._say, self._tags = place, scratch, say, tags
        self._takes = self._adds = True
        self.added: dict[str, str] = {}
        self.failure: Exception | None = None

    @property
    def is_used(self) -> bool:
        """True if there is a store, and it works."""
        return self._place is not None and (self._takes or self._adds)

    def take(self, tag: str, folder: Path) -> bool:
        """Fill a folder with the entry of a tag or digest; return whether the store had all of it.

        If not, the folder holds nothing new.
        """
        if (place := self._place) is None or not self._takes:
            return False
        try:
            with self.files() as partial_folder:
                if not self._take(place, tag, partial_folder):
                    return False
                for path in partial_folder.iterdir():
                    shutil.move(path, folder / path.name)
                return True
        except (NotFound, WrongContent, ValueError) as error:
            self._tell(place, error, "it is made here")
        except Interrupted:
            raise
        except (BuildImagesError, OSError) as error:
            if isinstance(error, OSError) and error.errno in _OF_ENTRY:
                self._tell(place, error, "it is made here")
                return False
            self._takes, self.failure = False, error
            self._adds = isinstance(error, Denied)  # the first to write creates the repository
            self._tell(place, error, "this run goes on without it")
        return False

    def lacks(self, tag: str) -> bool:
        """Return whether a tag can be added, and the store does not have it."""
        if (place := self._place) is None or not self._adds:
            return False
        try:
            return place.manifest(tag) is None
        except (BuildImagesError, OSError):
            return False

    def put(
        self,
        tag: str,
        folder: Path,
        title: str,
        *,
        names: Collection[str] = (),
        packed: bool = False,
    ) -> None:
        """Add the regular files of a folder under a tag, whatever the tag named before.

        `names` are those files and subfolders that are added, by default all. With `packed`, files
        are compressed. `title` says what the entry is, for people.
        """
        if (place := self._place) is None or not self._adds:
            return
        try:
            tops = (path for path in folder.iterdir() if path.name in (names or {path.name}))
            below = (path for top in tops for path in (top, *top.rglob("*")))
            paths = sorted(path for path in below if path.is_file() and not path.is_symlink())
            work = partial(self._stored, place, folder, packed=packed)
            manifest = _manifest(_in_threads(work, paths), title)
            if len(manifest) > LARGEST_MANIFEST:
                self._say(f"the site's store: {title} has too many files: it is not added")
            else:
                place.set_tag(tag if self._tags else "", manifest)
                self.added[tag] = digest_of(manifest)
        except Interrupted:
            raise
        except (BuildImagesError, OSError, ValueError) as error:
            self._adds, self.failure = False, error
            self._tell(place, error, "this run adds nothing more")

    def digest(self, tag: str) -> str:
        """Return the digest of a tag's entry; empty unless the store has all of it."""
        if (place := self._place) and self._takes:
            with contextlib.suppress(BuildImagesError, OSError, ValueError):
                content = place.manifest(tag)
                if content and _is_complete(place, _files_of(content, tag)):
                    return digest_of(content)
        return ""

    def blobs(self, digest: str) -> Mapping[str, str]:
        """Return the digests of an entry's files, by path. Raises errors of the store."""
        assert self._place is not None
        files = _files_of(_by_digest(self._place, digest), digest)
        return {file.path: file.blob.digest for file in files}

    def set_tag(self, tag: str, digest: str) -> None:
        """Let a tag name an entry that another machine added. Raises errors of the store."""
        assert self._place is not None
        self._place.set_tag(tag, _by_digest(self._place, digest))

    def error(
        self, what: str, failure: Exception | None = None, *, hint: str = ""
    ) -> MissingPrerequisite:
        """Return the error for what it did not do, after a failure, by default the last one.

        It is a `TemporaryFailure` unless the store refused that, or lacks the entry.
        """
        failure = failure or self.failure
        is_temporary = (
            failure.is_temporary
            if isinstance(failure, RegistryFailed)
            else isinstance(failure, OSError) and failure.errno not in _REFUSALS
        )
        kind = TemporaryFailure if is_temporary else MissingPrerequisite
        reason = failure.args[0] if isinstance(failure, BuildImagesError) else failure
        return kind(f"{what}: {reason}" if failure else what, hint=hint)

    def stop(self) -> None:
        """End the transfers of other threads; they raise `Interrupted`."""
        if self._place:
            self._place.stop()

    def _take(self, place: StorePlace, tag: str, folder: Path) -> bool:
        content = place.manifest(tag)
        if content is None:
            return False
        if is_digest(tag) and digest_of(content) != tag:
            raise WrongContent(f"{place.name}: {tag}: its digest is {digest_of(content)}")
        files = _files_of(content, f"{place.name}: {tag}")
        place.note_use(tag)
        if is_complete := _is_complete(place, files):  # else it is made again, and added again
            _in_threads(partial(self._fetch, place, folder), files)
        return is_complete

    def _fetch(self, place: StorePlace, folder: Path, file: EntryFile) -> None:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if file.blob.media_type == _PACKED:
                with self.files() as scratch:
                    place.read(file.blob, scratch / "packed")
                    _unpack(scratch / "packed", target)
            else:
                place.read(file.blob, target)
        except WrongContent:
            place.drop(file.blob)
            raise
        target.chmod(file.mode)

    def _stored(self, place: StorePlace, folder: Path, path: Path, *, packed: bool) -> EntryFile:
        if packed:
            with self.files() as scratch:
                blob = _written(place, _compressed(path, scratch / "packed"), _PACKED)
        else:
            blob = _written(place, path, _FILE)
        mode = path.stat().st_mode & 0o777
        return EntryFile(path=str(path.relative_to(folder)), mode=mode, blob=blob)

    def files(self) -> AbstractContextManager[Path]:
        """Yield a folder for files on their way to or from the store."""
        return temporary_folder(self._scratch, "site-store-")

    def _tell(self, place: StorePlace, error: Exception, rest: str) -> None:
        text = str(error.args[0] if isinstance(error, BuildImagesError) else error)
        name = "" if place.name in text else f" ({place.name})"
        self._say(f"the site's store{name}: {text}; {rest}")


def _in_threads(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of `work`; all of it has ended then, also after a failure."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(work, items))


def _by_digest(place: StorePlace, digest: str) -> bytes:
    """Return the manifest of a digest; raises `NotFound` if the place has none, or another."""
    content = place.manifest(digest)
    if content is None or digest_of(content) != digest:
        raise NotFound(f"{place.name}: no entry {digest}")
    return content


def _files_of(content: bytes, where: str) -> list[EntryFile]:
    """Return the files of an entry's manifest; raises `WrongContent` or `ValueError`."""
    manifest = json_object(content, where)
    if manifest.get("artifactType") != ENTRY:
        raise WrongContent(f"{where}: not an entry of a site's store")
    return [EntryFile.read(blob, where) for blob in descriptors(manifest, "layers", where)]


def _is_complete(place: StorePlace, files: Iterable[EntryFile]) -> bool:
    return all(_in_threads(place.has, {file.blob.digest: file.blob for file in files}.values()))


def _manifest(files: Iterable[EntryFile], title: str) -> bytes:
    now = dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": ENTRY,
            "config": Descriptor.of(EMPTY_CONTENT, EMPTY).as_json(),
            "layers": [file.as_json() for file in files],
            "annotations": {TITLE: title, CREATED: now},
        }
    )


def _written(place: StorePlace, path: Path, media_type: str) -> Descriptor:
    """Add a file unless the place has it; return its descriptor."""
    digest = digest_of_file(path)
    blob = Descriptor(media_type=media_type, digest=digest, size=path.stat().st_size)
    if not place.has(blob):
        place.write(path, blob)
    return blob


def _compressed(path: Path, target: Path) -> Path:
    with path.open("rb") as source, target.open("wb") as sink:
        zstandard.ZstdCompressor(level=_LEVEL, threads=-1).copy_stream(source, sink)
    return target


def _unpack(packed: Path, target: Path) -> None:
    with packed.open("rb") as source, target.open("wb") as sink:
        try:
            zstandard.ZstdDecompressor().copy_stream(source, sink)
        except DAMAGED as error:
            raise WrongContent(f"{packed}: {error}") from error
