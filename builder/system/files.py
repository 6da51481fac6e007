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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builder.model.digests import digest_of
from builder.model.errors import BadInput, BuildImagesError
from builder.model.manifest import Manifest
from builder.system.process import Processes


def write_whole(file: Path, text: str) -> None:
    """Write a file atomically: all of it or none; nobody else writes it meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    try:
        with partial.open("w") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        partial.rename(file)
        fsync(file.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(file: Path, text: str, *, errors: str = "strict") -> None:
    """Write a file so that a reader sees all of it or the one before; others may write it, too.

    `errors` says, as `str.encode` takes it, what comes of what is no Unicode. After a power cut the
    file may be as it was before.
    """
    partial = file.with_name(f".{os.urandom(12).hex()}.partial")  # its own name may be a long one
    try:
        partial.write_text(text, encoding="utf-8", errors=errors)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """A second name for a file, or a copy of it on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def fsync(path: Path) -> None:
    """Have a file, or the names in a folder, on disk even if the power fails."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_files(folder: Path) -> None:
    """Have the files right in a folder on disk, and their names: before it gets its own name."""
    for file in folder.iterdir():
        if file.is_file() and not file.is_symlink():
            fsync(file)
    fsync(folder)


@contextlib.contextmanager
def unnamed(folder: Path) -> Iterator[Path]:
    """Yield the path of an empty file without a name, on the file system of a folder.

    It is gone when it is closed, also if nobody is left to remove it.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        yield Path(f"/proc/self/fd/{file.fileno()}")


def discard(file: Path) -> None:
    """Remove a file, if it is there; an `unnamed` one goes by itself."""
    with contextlib.suppress(PermissionError):
        file.unlink(missing_ok=True)


def note_use(record: Path) -> None:
    """Note that something is of use: `gc` leaves what was so lately.

    What another user shares is that one's to note, and to remove.
    """
    with contextlib.suppress(OSError):  # gone, another's, or on a file system that is read-only
        os.utime(record)


_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def read_regular(path: Path, limit: int | None = None, *, follow: bool = False) -> bytes:
    """Return the bytes of a regular file, of which there are at most `limit`.

    Raises `OSError` for anything else at that path: no pipe is waited for, and no link followed,
    unless asked to `follow`.
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
    """Yield a path, and those below it, that lead neither to regular files nor to folders."""
    paths = [path, *(path.rglob("*") if path.is_dir() else ())]
    yield from (one for one in paths if not (one.is_file() or one.is_dir()))


_ESCAPE = re.compile(rb"\\([0-7]{3})")  # space, tab, newline and backslash, proc_pid_mountinfo(5)
_TARGET = 4
_MOUNTS = Path("/proc/self/mountinfo")


def mounted_below(folder: Path, *, mounts: Path = _MOUNTS) -> list[Path]:
    """Return where something is mounted at `folder` or below it, the last one mounted first.

    `folder` is a real path, without links; `mounts` is in the format of `/proc/PID/mountinfo`.
    """
    targets = [target for target, _ in _mounts(mounts)]
    return [one for one in reversed(targets) if one == folder or folder in one.parents]


def type_of(folder: Path) -> str:
    """Return the type of the file system that a folder is on, as `tmpfs`; empty if unknown."""
    real = folder.resolve()
    ways = {real, *real.parents}
    above = [(len(target.parts), kind) for target, kind in _mounts(_MOUNTS) if target in ways]
    above.reverse()  # of several mounts in one place, the last one counts
    return max(above, key=lambda mount: mount[0])[1] if above else ""


def _mounts(file: Path) -> Iterator[tuple[Path, str]]:
    """Yield where something is mounted, and its type."""
    for line in file.read_bytes().splitlines():
        fields, _, rest = line.partition(b" - ")
        name = _ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), fields.split(b" ")[_TARGET])
        yield Path(name.decode(errors="surrogateescape")), rest.split(b" ")[0].decode()


def as_root_of_own() -> tuple[str, ...]:
    """Return the words before a command that is to be root and to mount, visible to nobody else.

    `buildah unshare` reads sub-ids as newuidmap does, and is there wherever images are built.
    """
    return ("unshare", "--mount") if os.geteuid() == 0 else ("buildah", "unshare")


def remove_tree(folder: Path) -> None:
    """Remove a folder if it is there, also with what sub-ids own in it.

    Processes of a run that was interrupted start nothing more, so these are others.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if os.geteuid() != 0 and os.path.lexists(folder):
        with contextlib.suppress(BuildImagesError):
            Processes().capture([*as_root_of_own(), "rm", "-rf", "--", folder], check=False)


_NOT_BOUND = "build the image again; build-images verify renews evidence alone"


def read_bound(folder: Path, manifest: Manifest, name: str) -> bytes:
    """Return the bytes of a file that a manifest binds; raises `BadInput` if they are others."""
    try:
        content = read_regular(folder / name, follow=True)
    except OSError as error:
        raise BadInput(
            f"{folder / name}: cannot be read ({error.strerror})", hint=_NOT_BOUND
        ) from error
    digest = manifest.digests.get(name)
    if digest is None:
        raise BadInput(f"{folder / name}: manifest.json has no digest of it", hint=_NOT_BOUND)
    if digest_of(content) != digest:
        raise BadInput(f"{folder / name}: not the file that manifest.json names", hint=_NOT_BOUND)
    return content


def table_beside(module: str, name: str) -> Any:
    """Return what a YAML file beside a module (`__file__`) of this package holds."""
    import yaml  # noqa: PLC0415 - few commands need a table

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(Path(module).with_name(name).read_text("utf-8"), Loader=loader)  # noqa: S506


def text_of(file: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file; empty if the file cannot be read or holds none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
