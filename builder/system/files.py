"""Files and mounts: atomic writes, regular files, and where file systems are mounted."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from builder.model.digests import digest_of
from builder.model.errors import BadInput, BuildImagesError
from builder.model.manifest import Manifest
from builder.model.records import read

if TYPE_CHECKING:
    from builder.system.process import Processes

T = TypeVar("T")


@contextlib.contextmanager
def replacing(file: Path, *, durable: bool = False, alone: bool = False) -> Iterator[Path]:
    """Yield the path of a new file that becomes `file` at the end: readers see the old or the new.

    A power failure may bring the old file back, unless it is `durable`. A writer that is `alone`
    takes the same path again, so that what a killed process left is replaced.
    """
    name = file.name if alone else os.urandom(12).hex()  # a longer name could be too long
    partial = file.with_name(f".{name}.partial")
    try:
        yield partial
        if durable:
            fsync(partial)
        partial.replace(file)
        if durable:
            fsync(file.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(
    file: Path, text: str, *, errors: str = "strict", durable: bool = False
) -> None:
    """Write a file atomically, even beside other writers (`replacing`).

    `errors` is that of `str.encode`, for text that is not valid Unicode. A `durable` write makes a
    missing folder, too.
    """
    if durable:
        file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file, durable=durable) as partial:
        partial.write_text(text, encoding="utf-8", errors=errors)


def writable_folder(folder: Path) -> None:
    """Create a folder if it is missing; raise `BadInput` before long work if it is not writable."""
    folder.mkdir(exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise BadInput(f"{folder}: this user cannot write to it", hint="ask its owner")


def create_file(path: Path, data: bytes, *, mode: int) -> None:
    """Write a new file to the disk; never overwrite a file, follow a link or leave a part."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink()
        raise


_SHOWN = 5  # entries of a folder that an error names


def write_new(folder: Path, texts: Mapping[str, str], *, dry_run: bool = False) -> None:
    """Write files below a new or empty folder; raise `BadInput` if it is neither.

    A folder that holds only `.git` counts as empty. With `dry_run`, only check the folder.
    """
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():  # a dangling link is none
        raise BadInput(f"{nearest}: not a folder", hint="name a new folder")
    names = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    if entries := sorted(names - {".git"}):
        listed = ", ".join([*entries[:_SHOWN], *(["..."] if len(entries) > _SHOWN else [])])
        raise BadInput(f"{folder}: not empty: {listed}", hint="name a new folder")
    written: list[Path] = []
    try:
        for name, text in {} if dry_run else texts.items():
            written.append(folder / name)
            written[-1].parent.mkdir(parents=True, exist_ok=True)
            written[-1].write_text(text, encoding="utf-8")
    except OSError:
        for path in reversed(written):  # else they would stand in the way of the next try
            with contextlib.suppress(OSError):  # a folder with other files is removed with the last
                path.unlink(missing_ok=True)
                for parent in takewhile(folder.parent.__ne__, path.parents):
                    parent.rmdir()
        raise


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the files of a folder, by name; each replaces an older one atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text, errors="replace")


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Create a hard link to a file, or a copy on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def fsync(path: Path) -> None:
    """Write a file, or the names in a folder, to disk, so that they survive a power failure."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_files(folder: Path) -> None:
    """Write the files in a folder (not below) and their names to disk, before it is renamed."""
    for file in folder.iterdir():
        if file.is_file() and not file.is_symlink():
            fsync(file)
    fsync(folder)


@contextlib.contextmanager
def unnamed(folder: Path) -> Iterator[Path]:
    """Yield the path of an empty file without a name, on the file system of a folder.

    The file disappears when it is closed, even if the process is killed.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        yield Path(f"/proc/self/fd/{file.fileno()}")


@contextlib.contextmanager
def temporary_folder(folder: Path, prefix: str) -> Iterator[Path]:
    """Create a temporary folder in a folder, which is made too if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as name:
        yield Path(name)


def discard(file: Path) -> None:
    """Remove a file if it exists; an `unnamed` file disappears by itself."""
    with contextlib.suppress(PermissionError):
        file.unlink(missing_ok=True)


def note_use(record: Path) -> None:
    """Note that something was used now: `gc` spares what was used recently.

    Files that another user shares are not touched: that user notes their use and removes them.
    """
    with contextlib.suppress(OSError):  # removed, of another user, or on a read-only file system
        os.utime(record)


_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def read_regular(path: Path, limit: int | None = None, *, follow: bool = False) -> bytes:
    """Return the bytes of a regular file, at most `limit`.

    Raises `OSError` for a larger file and for any other kind of file: it does not wait for a pipe,
    and follows a link only with `follow`.
    """
    flags = _FLAGS if follow else _FLAGS | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        content = file.read() if limit is None else file.read(limit + 1)
    if limit is not None and len(content) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def irregular(path: Path) -> Iterator[Path]:
    """Yield a path, and those below it, if they are neither regular files nor folders."""
    paths = [path, *(path.rglob("*") if path.is_dir() else ())]
    yield from (one for one in paths if not (one.is_file() or one.is_dir()))


_ESCAPE = re.compile(rb"\\([0-7]{3})")  # space, tab, newline and backslash, proc_pid_mountinfo(5)
_TARGET = 4
_MOUNTS = Path("/proc/self/mountinfo")


def mounted_below(folder: Path, *, mounts: Path = _MOUNTS) -> list[Path]:
    """Return the mount points at or below `folder`, the most recent mount first.

    `folder` is a path without symbolic links; `mounts` has the format of `/proc/PID/mountinfo`.
    """
    targets = [target for target, _ in _mounts(mounts)]
    return [one for one in reversed(targets) if one == folder or folder in one.parents]


def unmount_below(folder: Path, processes: Processes) -> str:
    """Unmount everything at or below a folder; return the first failure's reason, else empty.

    The storage of a killed build may still be mounted.
    """
    for target in mounted_below(folder):
        done = processes.capture(["umount", target], check=False, timeout_s=60)
        if done.returncode:
            return (done.stderr.splitlines() or [f"umount {target} failed"])[-1]
    return ""


def type_of(folder: Path) -> str:
    """Return the type of a folder's file system, such as `tmpfs`; empty if unknown."""
    real = folder.resolve()
    ways = {real, *real.parents}
    above = [(len(target.parts), kind) for target, kind in _mounts(_MOUNTS) if target in ways]
    above.reverse()  # the last of several mounts in one place counts
    return max(above, key=lambda mount: mount[0])[1] if above else ""


def _mounts(file: Path) -> Iterator[tuple[Path, str]]:
    """Yield each mount point, with the type of its file system."""
    for line in file.read_bytes().splitlines():
        fields, _, rest = line.partition(b" - ")
        name = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), fields.split(b" ")[_TARGET])
        yield Path(name.decode(errors="surrogateescape")), rest.split(b" ")[0].decode()


def as_root_of_own() -> tuple[str, ...]:
    """Return a prefix for commands that need root's rights and private mounts.

    `buildah unshare` reads sub-ids as newuidmap does, and is installed wherever images are built.
    """
    return ("unshare", "--mount") if os.geteuid() == 0 else ("buildah", "unshare")


def remove_tree(folder: Path) -> None:
    """Remove a folder if it exists, including files owned by sub-ids.

    This uses new `Processes`, since those of an interrupted run start no more commands.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if os.geteuid() != 0 and os.path.lexists(folder):
        from builder.system.process import Processes  # noqa: PLC0415 - who reads starts nothing

        with contextlib.suppress(BuildImagesError):
            Processes().capture([*as_root_of_own(), "rm", "-rf", "--", folder], check=False)


_NOT_BOUND = "build the image again; build-images verify renews only evidence"


def read_bound(folder: Path, manifest: Manifest, name: str) -> bytes:
    """Return a file's bytes; raise `BadInput` if the digest in the manifest differs."""
    try:
        content = read_regular(folder / name, follow=True)
    except OSError as error:
        raise BadInput(
            f"{folder / name}: cannot be read ({error.strerror})", hint=_NOT_BOUND
        ) from error
    digest = manifest.digests.get(name)
    if digest is None:
        raise BadInput(f"{folder / name}: manifest.json has no digest for it", hint=_NOT_BOUND)
    if digest_of(content) != digest:
        raise BadInput(f"{folder / name}: its digest differs from manifest.json", hint=_NOT_BOUND)
    return content


def table_beside(module: str, name: str) -> Any:
    """Return the content of a YAML file beside a module (`__file__`) of this package."""
    import yaml  # noqa: PLC0415 - few commands need a table

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(Path(module).with_name(name).read_text("utf-8"), Loader=loader)  # noqa: S506


def json_record(kind: type[T], path: Path) -> T | None:
    """Return the record in a file; None if there is none, or one of another version."""
    try:
        return read(kind, read_json(path))
    except ValueError:
        return None


def read_json(path: Path) -> dict[str, object]:
    """Return the JSON object in a file; empty if the file is unreadable or not an object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
