"""The cache of pulls: blobs that all pulls share, and lists of layer members for one command.

Blobs are kept for later pulls. Lists of members are written by separate processes while another
layer is packed, and are removed when the command ends.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from builder.artifacts.tars import users_attributes
from builder.artifacts.tree import line_of
from builder.distribute.pull.folders import is_own_file, make_own
from builder.distribute.pull.members import Laid, as_member, members, named, sha256_of_content
from builder.distribute.pull.streams import PARTIAL, opened
from builder.model.digests import sha256_of_file
from builder.registry import Descriptor, Source
from builder.system.locks import locked
from builder.system.threads import AT_ONCE, Coming, Workers, workers

LISTED = ("oci", "charliecloud")  # formats whose layers are read, but not unpacked to disk
_MODE = 0o644  # independent of the umask
_FULL = frozenset([errno.ENOSPC, errno.EDQUOT])
# With more threads than cores, all become slower: they wait for Python's global lock.
_READING = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))


@dataclass(frozen=True, kw_only=True, slots=True)
class BlobStore:
    """A folder of blobs, named by SHA-256; several pulls of one user may use it at once.

    Only this user has access, so a checked blob stays unchanged when it is linked elsewhere. Blobs
    have the mode 0644, which their links share. An incomplete blob is `HEX.partial`, and its
    download is resumed. `tell` gets a line while this pull waits for another one.
    """

    folder: Path
    tell: Callable[[str], object] = lambda _: None

    def get(self, registry: Source, blob: Descriptor) -> Path:
        """Return the file of a blob; fetch it if it is missing; see `held`."""
        with self.held(registry, blob) as file:
            return file

    @contextlib.contextmanager
    def held(self, registry: Source, blob: Descriptor) -> Iterator[Path]:
        """Lock a blob and yield its file; fetch it if it is missing, else check it again.

        The caller may move the file away. Raises `Refused` if others could change the folder.
        """
        make_own(self.folder)
        name = blob.digest.partition(":")[2]
        with locked(
            self.folder,
            name,
            waiting=lambda holder: self.tell(f"waiting for {holder}, which fetches {blob.digest}"),
            stopped=lambda: bool(registry.check()),
        ):
            file = self.folder / name
            if is_own_file(file) and sha256_of_file(file) == name:
                file.touch()  # `gc` removes blobs that no pull used lately
            else:
                file.unlink(missing_ok=True)
                self._fetch(registry, blob, file)
            file.chmod(_MODE)
            yield file

    def _fetch(self, registry: Source, blob: Descriptor, file: Path) -> None:
        partial = file.with_name(f"{file.name}{PARTIAL}")
        if not is_own_file(partial):
            partial.unlink(missing_ok=True)
        try:
            registry.read_blob(blob, partial)
        except OSError as error:
            if error.errno in _FULL:
                partial.unlink(missing_ok=True)
            raise
        partial.rename(file)


def place(blob: Path, target: Path) -> None:
    """Link a blob to another path, or copy it if the file system allows no link."""
    try:
        target.hardlink_to(blob)
    except OSError:
        shutil.copyfile(blob, target)
        target.chmod(_MODE)


def write_list(request: Sequence[str], check: Callable[[], object]) -> None:
    """Write a list of a layer's members, while its blob arrives; end if the list is removed.

    `request` is the blob's path and digest, its diff_id or "", the path of an empty list, and the
    blob's size, or 0 for a complete one.
    """
    blob, digest, diff_id, target, size = request

    def checked() -> None:
        check()
        Path(target).lstat()

    with (
        Path(target).open("r+b") as file,  # never made anew: who removed it ends this
        named(digest),
        opened(Path(blob), digest, diff_id, check=checked, size=int(size)) as stream,
    ):
        for member, path, content in members(stream):
            sha256 = sha256_of_content(content) if member.isreg() else ""
            kind, attributes = member.type.decode("latin-1"), users_attributes(member)
            about = (member.linkname, sha256, *itertools.chain.from_iterable(attributes))
            file.write(line_of(path, kind, member.mode, member.size, *about))


def listed(path: Path) -> Iterator[Laid]:
    """Yield the members of a layer from their list; their content is the SHA-256."""
    with path.open("rb") as lines:
        for line in lines:
            name, kind, mode, size, target, content, *more = json.loads(line)
            yield as_member(name, kind.encode("latin-1"), mode, size, target, more), name, content


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchedLayer:
    """A layer's blob, and the list of its members if the format needs one."""

    digest: str
    blob: Path
    members: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PullCache:
    """Blobs and lists for one command; `coming` are the layers that are being fetched.

    `lists` is a private folder that `readers` write to. Both are None for formats not in `LISTED`.
    """

    store: BlobStore
    coming: Coming[FetchedLayer]
    lists: Path | None = None
    readers: Workers | None = None

    @contextlib.contextmanager
    def listing(
        self, blob: Descriptor, check: Callable[[], object], *, diff_id: str = ""
    ) -> Iterator[Callable[[], Path]]:
        """List the members of a blob while the caller fetches it into the store.

        Yields a function that returns the list; call it once the blob is complete. The plain bytes
        must have the `diff_id`, if one is given. The function calls `check` in between, which
        raises an error to end the work, and raises `Refused` for a layer that must not be unpacked.
        """
        assert self.lists is not None  # the cache was opened for this format
        readers = self.readers
        assert readers is not None
        folder = Path(mkdtemp(dir=self.lists))
        path, file = folder / "list", self.store.folder / blob.digest.partition(":")[2]
        request = [str(file), blob.digest, diff_id, str(path), str(blob.size)]
        path.touch()
        ahead = readers.begin(request)

        def members() -> Path:
            if readers.finished(ahead, check):
                return path
            again = folder / "again"
            again.touch()
            with _READING:
                write_list([str(file), blob.digest, diff_id, str(again), "0"], check)
            return again

        try:
            yield members
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # the reader ends, too
            raise


@contextlib.contextmanager
def pull_cache(
    folder: Path, artifact_format: str, *, tell: Callable[[str], object] = lambda _: None
) -> Iterator[PullCache]:
    """Open the cache below a folder for one command; the format is empty if no image is made.

    Open it before any thread starts: it forks processes that read layers.
    """
    store, coming = BlobStore(folder=folder / "blobs", tell=tell), Coming[FetchedLayer]()
    if artifact_format not in LISTED:
        yield PullCache(store=store, coming=coming)
        return
    make_own(folder / "layers")
    with (
        TemporaryDirectory(dir=folder / "layers", ignore_cleanup_errors=True) as scratch,
        workers(write_list, AT_ONCE) as readers,
    ):
        yield PullCache(store=store, coming=coming, lists=Path(scratch), readers=readers)
