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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from builder.artifacts.tars import users_attributes
from builder.artifacts.tree import line_of
from builder.distribute.pull.folders import is_own_file, make_own
from builder.distribute.pull.members import Laid, as_member, members, named
from builder.distribute.pull.streams import LIMITS, LayerLimits, check_diff_id, opened
from builder.model.digests import sha256_of_file
from builder.registry import Descriptor, Source
from builder.system.locks import locked
from builder.system.threads import AT_ONCE, Coming
from builder.system.workers import Workers, workers

_MODE = 0o644  # whatever the umask
_FULL = frozenset([errno.ENOSPC, errno.EDQUOT])
_HASHED = "hashed"
# Of more threads than cores each waits for Python's lock, and all of them take longer.
_READING = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))
_OFTEN = 50  # members


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
        """Return a blob, fetched unless it is here; a blob that is here is read again.

        Raises `Refused` where others could change the folder.
        """
        make_own(self.folder)
        name = blob.digest.partition(":")[2]
        file, partial = self.folder / name, self.folder / f"{name}.partial"
        with locked(
            self.folder,
            name,
            waiting=lambda: self.tell(f"waiting for another pull that brings {blob.digest}"),
            stopped=lambda: bool(registry.check()),
        ):
            if is_own_file(file) and sha256_of_file(file) == name:
                file.chmod(_MODE)
                file.touch()  # `gc` removes what no pull took lately
                return file
            file.unlink(missing_ok=True)
            if not is_own_file(partial):
                partial.unlink(missing_ok=True)
            try:
                registry.read_blob(blob, partial)
            except OSError as error:
                if error.errno in _FULL:
                    partial.unlink(missing_ok=True)
                raise
            partial.chmod(_MODE)
            return partial.rename(file)

    def place(self, blob: Path, target: Path) -> None:
        """Show a blob at another path, without a copy where the file system allows it."""
        try:
            target.hardlink_to(blob)
        except OSError:
            _copy(blob, target)

    def give(self, blob: Path, target: Path) -> None:
        """Show a blob at a path whose owner may change it; copied if it is shown elsewhere."""
        with locked(self.folder, blob.name):
            if blob.stat().st_nlink > 1:
                _copy(blob, target)
            else:
                self.place(blob, target)

    def forget(self, blob: Path) -> None:
        """Remove a blob that has a new owner."""
        with locked(self.folder, blob.name):
            blob.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(_MODE)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberLists:
    """Lists of the members of layers, files in a folder that nobody else uses."""

    folder: Path
    workers: Workers

    def make(
        self, blob: Path, digest: str, check: Callable[[], object], *, hashed: bool = False
    ) -> Path:
        """List the members of a layer, `hashed` with the digest of its plain bytes.

        `check` is called meanwhile, and raises what is to end it. Raises `Refused` for a layer that
        must not be unpacked.
        """
        path = self.folder / f"{digest.partition(':')[2]}.jsonl"
        request = [str(blob), digest, str(path), _HASHED if hashed else ""]
        if not self.workers.do(request, check):
            with _READING:
                write_list(request, check)
        return path


def write_list(request: Sequence[str], check: Callable[[], object]) -> None:
    """List the members of a layer: a blob, its digest, the list's path, and whether to hash."""
    blob, digest, target, hashed = request
    with Path(target).open("wb") as file:
        file.writelines(_lines(Path(blob), digest, check, hashed=hashed == _HASHED))


def _lines(
    blob: Path, digest: str, check: Callable[[], object], *, hashed: bool
) -> Iterator[bytes]:
    with named(digest), opened(blob, digest, LIMITS, hashed=hashed) as stream:
        for number, (member, path, content) in enumerate(members(stream, LIMITS), 1):
            if number % _OFTEN == 1:
                check()
            LIMITS.check_entries(number)
            sha256 = content.sha256(check) if member.isreg() else ""
            kind, attributes = member.type.decode("latin-1"), users_attributes(member)
            about = (member.linkname, sha256, *itertools.chain.from_iterable(attributes))
            yield line_of(path, kind, member.mode, member.size, *about)
    if hashed:
        yield json.dumps({"diff_id": stream.digest}).encode()


def listed(
    path: Path,
    digest: str,
    _limits: LayerLimits,
    *,
    diff_ids: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Laid]:
    """Yield the members of a layer from their list, with the SHA-256 for content.

    Raises `Refused` where the layer's plain bytes have another digest than `diff_ids` has for it.
    """
    with path.open("rb") as lines:
        for line in lines:
            entry = json.loads(line)
            if isinstance(entry, dict):
                check_diff_id(entry["diff_id"], digest, diff_ids)
                return
            name, kind, mode, size, target, content, *more = entry
            yield as_member(name, kind.encode("latin-1"), mode, size, target, more), name, content


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchedLayer:
    """A layer's blob, and the list of its members where one is needed."""

    blob: Path
    members: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PullCache:
    """The blobs and the lists of one command; `coming` are the layers that are on their way.

    There are no `lists` where no layer is read without being written out.
    """

    store: BlobStore
    coming: Coming[FetchedLayer]
    lists: MemberLists | None = None


@contextlib.contextmanager
def pull_cache(
    folder: Path, *, with_lists: bool, tell: Callable[[str], object] = lambda _: None
) -> Iterator[PullCache]:
    """The cache below a folder, for one command. Begin it before any thread: it forks readers."""
    store, coming = BlobStore(folder=folder / "blobs", tell=tell), Coming[FetchedLayer]()
    if not with_lists:
        yield PullCache(store=store, coming=coming)
        return
    make_own(folder / "layers")
    with (
        TemporaryDirectory(dir=folder / "layers", ignore_cleanup_errors=True) as scratch,
        workers(write_list, AT_ONCE) as readers,
    ):
        lists = MemberLists(folder=Path(scratch), workers=readers)
        yield PullCache(store=store, coming=coming, lists=lists)
