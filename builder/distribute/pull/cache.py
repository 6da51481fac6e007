"""Blobs that were brought from registries, whole ones alone: the next pull goes on from there."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from builder import __version__
from builder.artifacts.tars import users_attributes
from builder.artifacts.tree import line_of
from builder.distribute.pull.folders import is_own, is_own_file, make_own
from builder.distribute.pull.members import Laid, as_member, members, named
from builder.distribute.pull.streams import LIMITS, Limits, check_diff_id, opened
from builder.model.digests import sha256_of_file
from builder.model.errors import Refused
from builder.registry import Descriptor, Source
from builder.system.locks import locked
from builder.system.workers import Workers, workers

_MODE = 0o644  # whatever the umask
_FULL = frozenset([errno.ENOSPC, errno.EDQUOT])


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """A folder of blobs by their SHA-256; several pulls use it at once, all of one user.

    Nobody else gets there: a blob that was checked is the same when it is shown elsewhere. Its mode
    is 0644, since that of what is shown is the same.

    A blob that comes is `HEX.partial`, which is gone on with after an interruption; it has its
    name when it is whole and has its digest. `on_bytes` is told how many bytes came, `tell` of what
    is waited for; `check` raises what is to end that.
    """

    folder: Path
    check: Callable[[], object] = lambda: None
    tell: Callable[[str], object] = lambda _: None
    on_bytes: Callable[[int], object] = lambda _: None

    def get(self, registry: Source, blob: Descriptor) -> Path:
        """A blob, fetched unless it is here. What is here is read again before it is believed.

        Raises `Refused` where others could change what is kept.
        """
        make_own(self.folder)
        name = blob.digest.partition(":")[2]
        file = self.folder / name
        with locked(
            self.folder,
            name,
            waiting=lambda: self.tell(f"waiting for another pull that brings {blob.digest}"),
            stopped=lambda: bool(self.check()),
        ):
            if is_own_file(file) and _is(file, name):
                file.chmod(_MODE)
                file.touch()  # `gc` removes what no pull took lately
            else:
                file.unlink(missing_ok=True)
                partial = self.folder / f"{name}.partial"
                if not is_own_file(partial):
                    partial.unlink(missing_ok=True)
                try:
                    registry.read_blob(blob, partial, on_bytes=self.on_bytes)
                except OSError as error:
                    if error.errno in _FULL:
                        partial.unlink(missing_ok=True)
                    raise
                partial.chmod(_MODE)
                partial.rename(file)
        return file

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


def _is(file: Path, digest: str) -> bool:
    return sha256_of_file(file) == digest


SCHEMA = "build-images/layer/v2"
_HASHED = "hashed"
_NONE: Mapping[str, str] = MappingProxyType({})
_END = len(hashlib.sha256().hexdigest()) + 1  # the last line: a checksum of all above it
# Of more threads than cores each waits for Python's lock, and all of them take longer.
_READING = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))
_OFTEN = 50  # members
_AT_ONCE = 1000  # lines: read together they take half the time
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NOTED = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """A folder of notes, one a layer; several pulls use it at once.

    `check` is called while members are read, and raises what is to end that. `workers` read
    in the place of whoever asks, if there are any (`reading`).
    """

    folder: Path
    check: Callable[[], object] = lambda: None
    workers: Workers | None = None

    def note(
        self, blob: Path, digest: str, limits: Limits = LIMITS, *, hashed: bool = False
    ) -> Path:
        """The note on a layer whose blob is known to have its digest; written if there is none.

        `hashed` ones have the digest of the plain bytes, too, which an image's configuration names.
        Raises `Refused` for what must not be unpacked, of which nothing is noted, and where others
        could change the notes.
        """
        make_own(self.folder)
        note = self.folder / f"{digest.partition(':')[2]}.jsonl"
        header = _header(digest, limits, hashed=hashed)
        if _is_believed(note, header):
            note.touch()  # what no pull takes for long is garbage
            return note
        if (
            limits is LIMITS
            and self.workers
            and self.workers.do(
                [str(blob), digest, str(self.folder), _HASHED if hashed else ""], self.check
            )
        ):
            return note
        with locked(self.folder, note.stem, stopped=lambda: bool(self.check())), _READING:
            if not _is_believed(note, header):
                self._write(note, header, self._lines(blob, digest, limits, hashed=hashed))
        return note

    def _write(self, note: Path, header: bytes, lines: Iterable[bytes]) -> None:
        partial = note.with_suffix(".partial")
        try:
            partial.unlink(missing_ok=True)
            with os.fdopen(os.open(partial, _NEW, 0o600), "wb") as file:
                written = hashlib.sha256(header)
                file.write(header)
                for line in lines:
                    written.update(line)
                    file.write(line)
                file.write(f"{written.hexdigest()}\n".encode())
            partial.rename(note)
        finally:
            partial.unlink(missing_ok=True)

    def _lines(self, blob: Path, digest: str, limits: Limits, *, hashed: bool) -> Iterator[bytes]:
        with named(digest), opened(blob, digest, limits, hashed=hashed) as stream:
            for number, (member, path, content) in enumerate(members(stream, limits), 1):
                if number % _OFTEN == 1:
                    self.check()
                limits.check_entries(number)
                sha256 = content.sha256(self.check) if member.isreg() else ""
                kind, attributes = member.type.decode("latin-1"), users_attributes(member)
                about = (member.linkname, sha256, *itertools.chain.from_iterable(attributes))
                yield line_of(path, kind, member.mode, member.size, *about)
            if hashed:
                yield json.dumps({"diff_id": stream.digest}).encode() + b"\n"


def reading(most: int) -> AbstractContextManager[Workers]:
    """Processes that take notes, at most so many."""
    return workers(_note, most)


def _note(words: Sequence[str], check: Callable[[], object]) -> object:
    blob, digest, folder, hashed = words
    contents = Contents(folder=Path(folder), check=check)
    return contents.note(Path(blob), digest, hashed=hashed == _HASHED)


def noted(
    note: Path, digest: str, limits: Limits, *, diff_ids: Mapping[str, str] = _NONE
) -> Iterator[Laid]:
    """Yield the members in a layer's note, as the layer itself has them, content by digest.

    Raises `Refused` unless it is to be believed, and where the layer's plain bytes have another
    digest than `diff_ids` has for it; such a note was `hashed`.
    """
    header = _header(digest, limits, hashed=digest in diff_ids)
    with _opened(note) as file:
        if not _is_good(file, header):
            raise Refused(f"{note} was changed while it was read", hint="pull again")
        file.seek(len(header))
        last: list[bytes] = []
        lines = _until_last(file, last)
        while batch := b",".join(itertools.islice(lines, _AT_ONCE)):
            for path, kind, mode, size, target, content, *more in json.loads(f"[{batch.decode()}]"):
                member = as_member(path, kind.encode("latin-1"), mode, size, target, more)
                yield member, path, content
        if digest in diff_ids:
            check_diff_id(json.loads(last[0])["diff_id"], digest, diff_ids)


def _until_last(file: IO[bytes], last: list[bytes]) -> Iterator[bytes]:
    """The lines of members; the first that is none of these is put into `last`."""
    for line in file:
        if not line.startswith(b"["):
            last.append(line)
            return
        yield line


def _header(digest: str, limits: Limits, *, hashed: bool) -> bytes:
    """Return the header of a note; a note that was made by other rules is made anew."""
    fields: dict[str, object] = {
        "schema": SCHEMA,
        "build-images": __version__,
        "layer": digest,
        "limits": asdict(limits),
        "diff_id": hashed,
    }
    return json.dumps(fields).encode() + b"\n"


def _is_believed(note: Path, header: bytes) -> bool:
    """True if there is a note that is this user's own, of this layer, and complete."""
    try:
        with _opened(note) as file:
            return _is_good(file, header)
    except OSError:
        return False


def _is_good(file: IO[bytes], header: bytes) -> bool:
    status = os.fstat(file.fileno())
    if not (stat.S_ISREG(status.st_mode) and is_own(status)):
        return False
    return file.readline(len(header)) == header and _has_its_checksum(file, status.st_size, header)


def _has_its_checksum(file: IO[bytes], size: int, header: bytes) -> bool:
    sha256, remaining = hashlib.sha256(header), size - len(header) - _END
    while remaining > 0 and (data := file.read(min(remaining, 1 << 20))):
        sha256.update(data)
        remaining -= len(data)
    return remaining == 0 and file.read() == f"{sha256.hexdigest()}\n".encode()


def _opened(note: Path) -> IO[bytes]:
    return os.fdopen(os.open(note, _NOTED), "rb")
