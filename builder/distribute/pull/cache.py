"""Blobs that pulls share, and the members of the layers of one command's images.

Blobs stay for later pulls. Lists of members are made while another layer is packed, in processes of
their own, and are gone when the command ends.
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
from builder.distribute.pull.members import (
    Laid,
    as_member,
    members,
    named,
    sha256_of_content,
)
from builder.distribute.pull.streams import opened
from builder.model.digests import sha256_of_file
from builder.registry import Descriptor, Source
from builder.system.locks import locked
from builder.system.threads import AT_ONCE, Coming
from builder.system.workers import Workers, workers

LISTED = ("oci", "charliecloud")  # formats whose layers are read, and not written out
_MODE = 0o644  # whatever the umask
_FULL = frozenset([errno.ENOSPC, errno.EDQUOT])
# Of more threads than cores each waits for Python's lock, and all of them take longer.
_READING = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))


@dataclass(frozen=True, kw_only=True, slots=True)
class BlobStore:
    """A folder of blobs by their SHA-256; several pulls of one user use it at once.

    Nobody else gets there: a blob that was checked is the same when it is shown elsewhere. Its mode
    is 0644, since that of what is shown is the same. An incomplete blob is `HEX.partial`, and is
    resumed after an interruption. `tell` gets a line when another pull is waited for.
    """

    folder: Path
    tell: Callable[[str], object] = lambda _: None

    def get(self, registry: Source, blob: Descriptor) -> Path:
        """Return a blob, fetched unless it is here; see `held`."""
        with self.held(registry, blob) as file:
            return file

    @contextlib.contextmanager
    def held(self, registry: Source, blob: Descriptor) -> Iterator[Path]:
        """Lock a blob, fetched unless it is here; a blob that is here is read again.

        The holder may take its file away. Raises `Refused` where others could change the folder.
        """
        make_own(self.folder)
        name = blob.digest.partition(":")[2]
        with locked(
            self.folder,
            name,
            waiting=lambda: self.tell(f"waiting for another pull to fetch {blob.digest}"),
            stopped=lambda: bool(registry.check()),
        ):
            file = self.folder / name
            if is_own_file(file) and sha256_of_file(file) == name:
                file.touch()  # `gc` removes what no pull took lately
            else:
                file.unlink(missing_ok=True)
                self._fetch(registry, blob, file)
            file.chmod(_MODE)
            yield file

    def _fetch(self, registry: Source, blob: Descriptor, file: Path) -> None:
        partial = file.with_name(f"{file.name}.partial")
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
    """Show a blob at another path, without a copy where the file system allows it."""
    try:
        target.hardlink_to(blob)
    except OSError:
        shutil.copyfile(blob, target)
        target.chmod(_MODE)


def write_list(request: Sequence[str], check: Callable[[], object]) -> None:
    """List the members of a layer: a blob, its digest, its diff_id or none, the list's path."""
    blob, digest, diff_id, target = request
    with (
        Path(target).open("wb") as file,
        named(digest),
        opened(Path(blob), digest, diff_id, check=check) as stream,
    ):
        for member, path, content in members(stream):
            sha256 = sha256_of_content(content) if member.isreg() else ""
            kind, attributes = member.type.decode("latin-1"), users_attributes(member)
            about = (member.linkname, sha256, *itertools.chain.from_iterable(attributes))
            file.write(line_of(path, kind, member.mode, member.size, *about))


def listed(path: Path) -> Iterator[Laid]:
    """Yield the members of a layer from their list, with the SHA-256 for content."""
    with path.open("rb") as lines:
        for line in lines:
            name, kind, mode, size, target, content, *more = json.loads(line)
            yield as_member(name, kind.encode("latin-1"), mode, size, target, more), name, content


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchedLayer:
    """A layer's blob, and the list of its members where one is needed."""

    digest: str
    blob: Path
    members: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PullCache:
    """The blobs and the lists of one command; `coming` are the layers that are on their way.

    `lists` is a folder that nobody else uses, and `readers` write there; there are none where no
    layer is read without being written out.
    """

    store: BlobStore
    coming: Coming[FetchedLayer]
    lists: Path | None = None
    readers: Workers | None = None

    def list_members(
        self, blob: Path, digest: str, check: Callable[[], object], *, diff_id: str = ""
    ) -> Path:
        """List the members of a layer, whose plain bytes have to have the `diff_id`, if it has one.

        `check` is called meanwhile, and raises what is to end it. Raises `Refused` for a layer that
        must not be unpacked.
        """
        assert self.lists is not None  # whoever opens the cache knows the format
        assert self.readers is not None
        path = Path(mkdtemp(dir=self.lists), "list")  # a reader that was left may still write
        request = [str(blob), digest, diff_id, str(path)]
        if not self.readers.do(request, check):
            with _READING:
                write_list(request, check)
        return path


@contextlib.contextmanager
def pull_cache(
    folder: Path, artifact_format: str, *, tell: Callable[[str], object] = lambda _: None
) -> Iterator[PullCache]:
    """Open the cache below a folder, for images of one format that one command makes, if any.

    Begin it before any thread: it forks readers of layers.
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
