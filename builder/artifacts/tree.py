"""The tree digest: one hash over an image's root file system, whatever format holds it.

Over the sorted entries' (path, type, mode, size, SHA-256 of the content, link target, extended
attributes). Owners, the attributes that only root may give, and times are left out: a SIF that an
ordinary user packs cannot keep them. All but times are compared between the formats that do
(`owner_differences`). What a format must add or cannot keep is on the allow-list below, each with
its reason.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import posixpath
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import IO

from builder.artifacts.tars import Attributes, roots_attributes, users_attributes
from builder.model.digests import sha256_of
from builder.model.errors import StepFailed

_MOUNT_POINT = "a mount point: holds nothing in an image"
_HOSTS_OWN = "engines write the build host's, runtimes their own"
_SIF_LINK = "a link into .singularity.d that every SIF has"
# Paths that may differ between formats, and all below them, with the reason.
ALLOWED: Mapping[str, str] = {
    "dev": "device nodes and mount points: each runtime makes its own",
    "proc": _MOUNT_POINT,
    "sys": _MOUNT_POINT,
    "run": "a mount point at run time: engines leave their own stubs in it",
    "tmp": "a mount point at run time, emptied by formats and runtimes",
    "etc/resolv.conf": _HOSTS_OWN,
    "etc/hosts": _HOSTS_OWN,
    "etc/hostname": _HOSTS_OWN,
    "etc/mtab": "a link to /proc that some engines add",
    ".singularity.d": "a SIF's metadata: environment, labels, scripts",
    ".exec": _SIF_LINK,
    ".run": _SIF_LINK,
    ".shell": _SIF_LINK,
    ".test": _SIF_LINK,
    "singularity": _SIF_LINK,
    "environment": _SIF_LINK,
    "ch": "Charliecloud's metadata: the environment for ch-run --set-env",
}
_DESCRIBING = frozenset(["ch/environment", "opt/build-images/host-contract.json"])
_ENDS = re.compile(r"/|\Z")  # of a path's folders, and of itself
_LARGEST = 1 << 20  # bytes of a file that describes an image
_NOT_READ = b"\0"  # the content of one that is larger, or a link: equal to none that is expected
_text = json.encoder.encode_basestring_ascii  # a string as JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One path of a root file system. `mode` holds the permission bits, setuid's among them.

    `owner` is `UID:GID` and what only root may give besides; it has no part in the digest, nor in
    whether two entries are equal.
    """

    path: str
    kind: str
    mode: int
    size: int = 0
    content: str = ""
    target: str = ""
    attributes: Attributes = ()
    owner: str = dataclasses.field(default="", compare=False)


def owner_of(member: tarfile.TarInfo) -> str:
    """Return the owner of a tar's member as entries hold it, with root's attributes."""
    roots = [f"{name}={text!a}" for name, text in roots_attributes(member)]
    return " ".join([f"{member.uid}:{member.gid}", *roots])


def clean(name: str) -> str:
    """Return a member's name as a path relative to the root: no leading `./` or `/`."""
    return posixpath.normpath("/" + name.lstrip("/")).lstrip("/")


def is_allowed(path: str) -> bool:
    """Return whether a path is on the allow-list, or below one that is."""
    return any(path[: match.start()] in ALLOWED for match in _ENDS.finditer(path))


def describes(path: str) -> bool:
    """Return whether a file describes an image: its variables, labels or scripts."""
    return path in _DESCRIBING or path.startswith(".singularity.d/")


def hashed(data: IO[bytes], path: str, size: int, retained: dict[str, bytes] | None) -> str:
    """Return the SHA-256 of a file's content, which is retained if it describes the image."""
    if retained is None or not describes(path) or size > _LARGEST:
        return sha256_of(data)
    retained[path] = data.read()
    return hashlib.sha256(retained[path]).hexdigest()


def entries_of_tar(stream: IO[bytes], retained: dict[str, bytes] | None = None) -> Iterator[Entry]:
    """Yield the entries of a tar of a root file system, read once from start to end.

    `retained` is given the contents of the files that describe an image (`describes`).
    """
    seen: dict[str, Entry] = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            path = clean(member.name)
            if not path:
                continue
            seen[path] = entry = _entry(archive, member, path, seen, retained)
            if retained is not None and describes(path) and entry.kind != "directory":
                retained.setdefault(path, _NOT_READ)
            yield entry


def _entry(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    path: str,
    seen: Mapping[str, Entry],
    retained: dict[str, bytes] | None,
) -> Entry:
    if member.islnk():
        target = clean(member.linkname)
        if target not in seen:
            raise StepFailed(f"/{path}: a hard link to /{target}, which is not there")
        return dataclasses.replace(seen[target], path=path)  # a link may have several names too
    data = archive.extractfile(member) if member.isreg() else None
    if data is None:
        return entry_of_special(member, path)
    return entry_of_file(member, path, hashed(data, path, member.size, retained))


def entry_of_file(member: tarfile.TarInfo, path: str, content: str) -> Entry:
    """Return the entry of a regular file, whose content has a SHA-256."""
    return Entry(
        path=path,
        kind="file",
        mode=stat.S_IMODE(member.mode),
        size=member.size,
        content=content,
        attributes=users_attributes(member),
        owner=owner_of(member),
    )


def entry_of_special(member: tarfile.TarInfo, path: str) -> Entry:
    """Return the entry of anything but a regular file. A link's own mode means nothing on Linux."""
    owner = owner_of(member)
    if member.issym():
        return Entry(path=path, kind="link", mode=0o777, target=member.linkname, owner=owner)
    kinds = {
        tarfile.DIRTYPE: "directory",
        tarfile.CHRTYPE: "character device",
        tarfile.BLKTYPE: "block device",
        tarfile.FIFOTYPE: "pipe",
    }
    return Entry(
        path=path,
        kind=kinds.get(member.type, "other"),
        mode=stat.S_IMODE(member.mode),
        attributes=users_attributes(member),
        owner=owner,
    )


def comparable(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return the entries that count, by path, sorted."""
    counted = {entry.path: entry for entry in entries if not is_allowed(entry.path)}
    return dict(sorted(counted.items()))


def tree_digest(entries: Mapping[str, Entry]) -> str:
    """Return the digest over comparable entries, as `sha256:…`."""
    digest = hashlib.sha256()
    for entry in entries.values():
        about = entry.path, entry.kind, entry.mode, entry.size, entry.content, entry.target
        digest.update(line_of(*about, *chain.from_iterable(entry.attributes)))
    return f"sha256:{digest.hexdigest()}"


def line_of(path: str, kind: str, mode: int, size: int, *more: str) -> bytes:
    """Return a path and its properties as a line of JSON: a list without spaces."""
    texts = ",".join(map(_text, more))
    return f"[{_text(path)},{_text(kind)},{mode:d},{size:d},{texts}]\n".encode()


def differences(first: Mapping[str, Entry], second: Mapping[str, Entry]) -> list[str]:
    """Return the differences of two trees, one line a path."""
    return [
        f"/{path}: {_difference(first.get(path), second.get(path))}"
        for path in sorted(first.keys() | second.keys())
        if first.get(path) != second.get(path)
    ]


def keeps_owners(entries: Mapping[str, Entry]) -> bool:
    """Return whether a tree has several owners: one that an ordinary user packed has one."""
    return len({entry.owner for entry in entries.values()}) > 1


def owner_differences(first: Mapping[str, Entry], second: Mapping[str, Entry]) -> list[str]:
    """Return the paths of two trees whose owners differ, one line each."""
    return [
        f"/{path}: owner {entry.owner}, not {second[path].owner}"
        for path, entry in first.items()
        if path in second and entry.owner != second[path].owner
    ]


def _difference(first: Entry | None, second: Entry | None) -> str:
    if first is None or second is None:
        return f"only in the {'second' if first is None else 'first'}"
    if first.kind != second.kind:
        return f"{first.kind}, not {second.kind}"
    if first.mode != second.mode:
        return f"mode {first.mode:04o}, not {second.mode:04o}"
    if first.target != second.target:
        return f"links to {first.target}, not {second.target}"
    if first.attributes != second.attributes:
        names = sorted({name for name, _ in {*first.attributes} ^ {*second.attributes}})
        return f"another extended attribute {', '.join(names)}"
    return f"another content ({first.size} bytes, not {second.size})"
