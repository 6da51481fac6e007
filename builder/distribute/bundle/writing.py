"""Writes an archive: the same contents give the same bytes, and it is there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from builder.distribute.bundle.archive import BLOCK, INDEX_FILE, LAYOUT
from builder.distribute.bundle.contents import Contents, Origin
from builder.model.digests import HashedWriter
from builder.model.errors import BadInput, MissingPrerequisite
from builder.registry import Descriptor, Source, WrongContent
from builder.system.atomic import unnamed
from builder.system.locks import is_at

_VERSION = b'{"imageLayoutVersion":"1.0.0"}'
_PIECE = 1 << 20
_END = bytes(2 * BLOCK)
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_FILE = frozenset([errno.ELOOP, errno.EISDIR, errno.ENXIO])  # a link, a folder, a socket
_FULL = frozenset([errno.ENOSPC, errno.EDQUOT])
OnBytes = Callable[[int], object]


def write_archive(
    target: Path, contents: Contents, *, on_bytes: OnBytes = lambda _: None
) -> tuple[int, str]:
    """Write an archive, and give it its name when it is whole; its size and SHA-256.

    A file or a link at `target` is replaced then; for anything else there `BadInput` is raised.
    `on_bytes` is told how many bytes of blobs were written. Raises `MissingPrerequisite` when the
    disk is full, `WrongContent` for a file that is not what it has to be; nothing is left then.
    """
    index = contents.index()
    _check_place(target)
    _check_space(target, size_of(contents, index))
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


def size_of(contents: Contents, index: bytes) -> int:
    """The bytes of an archive."""
    sizes = [len(_VERSION), len(index), *(blob.size for blob, _ in contents.blobs.values())]
    return sum(BLOCK + -(-size // BLOCK) * BLOCK for size in sizes) + len(_END)


def _add(archive: HashedWriter, name: str, size: int, pieces: Iterable[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    archive.write(member.tobuf(tarfile.GNU_FORMAT))
    for piece in pieces:
        archive.write(piece)
    archive.write(bytes(-size % BLOCK))


def _checked(blob: Descriptor, origin: Origin, folder: Path, on_bytes: OnBytes) -> Iterator[bytes]:
    """The bytes of a blob, which have its size; raises `WrongContent` for another digest."""
    sha256, remaining = hashlib.sha256(), blob.size
    for piece in _pieces(blob, origin, folder):
        remaining -= len(piece)
        if remaining < 0:
            break
        sha256.update(piece)
        yield piece
        on_bytes(len(piece))
    if remaining or f"sha256:{sha256.hexdigest()}" != blob.digest:
        shown = origin if isinstance(origin, Path) else blob.digest
        raise WrongContent(f"{shown}: it is not what it has to be, {blob.digest}; nothing is left")


def _pieces(blob: Descriptor, origin: Origin, folder: Path) -> Iterator[bytes]:
    if isinstance(origin, bytes):
        yield origin
        return
    with contextlib.ExitStack() as held:
        if isinstance(origin, Source):
            file = held.enter_context(unnamed(folder))
            origin.read_blob(blob, file)
        else:
            file = origin
        opened = held.enter_context(file.open("rb"))
        while piece := opened.read(_PIECE):
            yield piece


@contextlib.contextmanager
def _partial(target: Path) -> Iterator[IO[bytes]]:
    """A file beside `target` that becomes it at the end, and that one alone writes.

    Others may write to the folder, too: a link that is there is not followed, and no file is
    written that is not this user's own, under this one name. Others read it when it is whole.
    """
    partial = target.with_name(f".{target.name}.partial")
    if target.is_dir():
        raise BadInput(f"{target}: a folder is there", hint="name a file with --output")
    try:
        handle = os.open(partial, _OPEN, 0o600)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInput(f"{target.parent}: there is no such folder") from error
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _not_ours(partial) from error
        raise
    with os.fdopen(handle, "wb") as file:
        _check_ours(file, partial)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _written(target) from error
        if not is_at(file.fileno(), partial):  # another gave it its name, or removed it
            raise _written(target)
        try:
            file.truncate(0)
            os.fchmod(file.fileno(), 0o600)  # one that was left may have another mode
            yield file
            file.flush()
            os.fchmod(file.fileno(), _mode_of_files())
            os.fsync(file.fileno())
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _written(target: Path) -> BadInput:
    return BadInput(f"{target}: another build-images writes it", hint="wait until it is done")


def _check_ours(file: IO[bytes], partial: Path) -> None:
    """Refuse anything but a plain file of this user that has no other name."""
    status = os.fstat(file.fileno())
    plain = stat.S_ISREG(status.st_mode) and status.st_nlink <= 1  # 0: another has removed it
    if not plain or status.st_uid != os.geteuid():
        raise _not_ours(partial)


def _not_ours(partial: Path) -> BadInput:
    return BadInput(f"{partial}: this is no plain file of this user", hint="remove it")


def _mode_of_files() -> int:
    """The mode that the umask leaves to a new file; it can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


def _check_place(target: Path) -> None:
    """Refuse a target that is no regular file: a device would be gone for good."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = target.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise BadInput(f"{target} is there already, and is no file", hint="name another one")


def _check_space(target: Path, size: int) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # told of when it is opened
        usage = shutil.disk_usage(target.parent)
        if not usage.total:  # of /proc and its like, which hold no files of anybody's
            raise BadInput(f"{target}: no file can be made there", hint="name another place")
        if usage.free < size:
            raise _full(target, size)


def _full(target: Path, size: int) -> MissingPrerequisite:
    return MissingPrerequisite(
        f"{target}: the disk is full; the archive has {size / 1e9:.2f} GB, nothing is left of it",
        hint="name a place with more room with --output, or fewer images",
    )
