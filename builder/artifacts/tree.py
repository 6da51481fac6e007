"""The tree digest: one hash over an image's root file system, whatever format holds it.

Over the sorted entries' (path, type, mode, size, SHA-256 of the content, link target). Owners and
times are left out: a SIF that an ordinary user packs cannot keep owners. They are compared between
the formats that do (`owner_differences`). What a format must add or cannot keep is on the
allow-list below, each with its reason.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import posixpath
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from builder.digests import sha256_of
from builder.errors import StepFailed


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """A path that may differ between formats, and all below it, with the reason."""

    path: str
    reason: str


ALLOWED: tuple[Allowance, ...] = (
    Allowance(path="dev", reason="device nodes and mount points: each runtime makes its own"),
    Allowance(path="proc", reason="a mount point: holds nothing in an image"),
    Allowance(path="sys", reason="a mount point: holds nothing in an image"),
    Allowance(path="run", reason="a mount point at run time: engines leave their own stubs in it"),
    Allowance(path="tmp", reason="a mount point at run time, emptied by formats and runtimes"),
    Allowance(path="etc/resolv.conf", reason="engines write the build host's, runtimes their own"),
    Allowance(path="etc/hosts", reason="engines write the build host's, runtimes their own"),
    Allowance(path="etc/hostname", reason="engines write the build host's, runtimes their own"),
    Allowance(path="etc/mtab", reason="a link to /proc that some engines add"),
    Allowance(path=".singularity.d", reason="a SIF's metadata: environment, labels, scripts"),
    Allowance(path=".exec", reason="a link into .singularity.d that every SIF has"),
    Allowance(path=".run", reason="a link into .singularity.d that every SIF has"),
    Allowance(path=".shell", reason="a link into .singularity.d that every SIF has"),
    Allowance(path=".test", reason="a link into .singularity.d that every SIF has"),
    Allowance(path="singularity", reason="a link into .singularity.d that every SIF has"),
    Allowance(path="environment", reason="a link into .singularity.d that every SIF has"),
    Allowance(path="ch", reason="Charliecloud's metadata: the environment for ch-run --set-env"),
)
_text = json.encoder.encode_basestring_ascii  # a string as JSON
_ALLOWED_PATHS = frozenset(one.path for one in ALLOWED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One path of a root file system. `mode` holds the permission bits, setuid's among them.

    `owner` is `UID:GID`; it has no part in the digest, nor in whether two entries are equal.
    """

    path: str
    kind: str
    mode: int
    size: int = 0
    content: str = ""
    target: str = ""
    owner: str = dataclasses.field(default="", compare=False)


def owner_of(member: tarfile.TarInfo) -> str:
    """The owner of a tar's member, as entries hold it."""
    return f"{member.uid}:{member.gid}"


def clean(name: str) -> str:
    """A member's name as a path relative to the root: no leading `./` or `/`."""
    return posixpath.normpath("/" + name.lstrip("/")).lstrip("/")


def is_allowed(path: str) -> bool:
    """Whether a path is on the allow-list, or below one that is."""
    return path in _ALLOWED_PATHS or _is_within_allowed(path.rpartition("/")[0])


@functools.lru_cache(1 << 14)  # many paths are in one folder
def _is_within_allowed(folder: str) -> bool:
    parents = folder.split("/")
    return any("/".join(parents[:n]) in _ALLOWED_PATHS for n in range(1, len(parents) + 1))


def entries_of_tar(stream: IO[bytes]) -> Iterator[Entry]:
    """The entries of a tar of a root file system, read once from start to end."""
    seen: dict[str, Entry] = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            path = clean(member.name)
            if not path:
                continue
            entry = _entry(archive, member, path, seen)
            seen[path] = entry
            yield entry


def _entry(
    archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, seen: Mapping[str, Entry]
) -> Entry:
    if member.islnk():
        target = clean(member.linkname)
        if target not in seen:
            raise StepFailed(f"/{path}: a hard link to /{target}, which is not there")
        return dataclasses.replace(seen[target], path=path)  # a link may have several names too
    if member.isreg():
        data = archive.extractfile(member)
        assert data is not None
        return Entry(
            path=path,
            kind="file",
            mode=stat.S_IMODE(member.mode),
            size=member.size,
            content=sha256_of(data),
            owner=owner_of(member),
        )
    return entry_of_special(member, path)


def entry_of_special(member: tarfile.TarInfo, path: str) -> Entry:
    """The entry of anything but a regular file. A link's own mode means nothing on Linux."""
    owner = owner_of(member)
    if member.issym():
        return Entry(path=path, kind="link", mode=0o777, target=member.linkname, owner=owner)
    kinds = {
        tarfile.DIRTYPE: "directory",
        tarfile.CHRTYPE: "character device",
        tarfile.BLKTYPE: "block device",
        tarfile.FIFOTYPE: "pipe",
    }
    kind = kinds.get(member.type, "other")
    return Entry(path=path, kind=kind, mode=stat.S_IMODE(member.mode), owner=owner)


def comparable(entries: Iterable[Entry]) -> dict[str, Entry]:
    """The entries that count, by path, sorted."""
    counted = {entry.path: entry for entry in entries if not is_allowed(entry.path)}
    return dict(sorted(counted.items()))


def tree_digest(entries: Mapping[str, Entry]) -> str:
    """The digest over comparable entries, as `sha256:…`."""
    digest = hashlib.sha256()
    for entry in entries.values():
        one = entry.path, entry.kind, entry.mode, entry.size, entry.content, entry.target
        digest.update(line_of(*one))
    return f"sha256:{digest.hexdigest()}"


def line_of(path: str, kind: str, mode: int, size: int, *more: str) -> bytes:
    """A path with what is known of it as a line of JSON: a list without spaces."""
    texts = ",".join(map(_text, more))
    return f"[{_text(path)},{_text(kind)},{mode:d},{size:d},{texts}]\n".encode()


def differences(one: Mapping[str, Entry], other: Mapping[str, Entry]) -> list[str]:
    """What differs between two trees, one line a path."""
    lines = []
    for path in sorted(one.keys() | other.keys()):
        here, there = one.get(path), other.get(path)
        if here == there:
            continue
        if here is None or there is None:
            lines.append(f"/{path}: only in the {'second' if here is None else 'first'}")
        else:
            lines.append(f"/{path}: {_difference(here, there)}")
    return lines


def keeps_owners(entries: Mapping[str, Entry]) -> bool:
    """Whether a tree tells owners apart: one that an ordinary user packed has a single one."""
    return len({entry.owner for entry in entries.values()}) > 1


def owner_differences(one: Mapping[str, Entry], other: Mapping[str, Entry]) -> list[str]:
    """The paths of two trees that belong to somebody else, one line each."""
    return [
        f"/{path}: owner {entry.owner}, not {other[path].owner}"
        for path, entry in one.items()
        if path in other and entry.owner != other[path].owner
    ]


def _difference(here: Entry, there: Entry) -> str:
    if here.kind != there.kind:
        return f"{here.kind}, not {there.kind}"
    if here.mode != there.mode:
        return f"mode {here.mode:04o}, not {there.mode:04o}"
    if here.target != there.target:
        return f"links to {here.target}, not {there.target}"
    return f"another content ({here.size} bytes, not {there.size})"
