"""The tree digest: one hash over an image's root file system, the same in every format.

It covers the sorted entries: path, type, mode, size, SHA-256 of the content, link target, extended
attributes. Owners, attributes that only root may set, and times are left out: a SIF that an
ordinary user packs cannot keep them. All but times are compared between the formats that keep them
(`owner_differences`). The allow-list in `paths.yaml` has what a format must add or cannot keep,
each with its reason.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import posixpath
import re
import stat
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from builder.artifacts.tars import Attributes, roots_attributes, users_attributes
from builder.system.files import table_beside

PATHS: Mapping[str, Mapping[str, str]] = table_beside(__file__, "paths.yaml")
# Paths that may differ between formats, and all below them, with the reason.
ALLOWED = PATHS["format_specific"]
_ENDS = re.compile(r"/|\Z")  # the ends of a path's folders, and of the path itself
_KINDS = {
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard link",
    tarfile.DIRTYPE: "directory",
    tarfile.CHRTYPE: "character device",
    tarfile.BLKTYPE: "block device",
    tarfile.FIFOTYPE: "pipe",
}
_text = json.encoder.encode_basestring_ascii  # a string as JSON

# Headers by which some programs of tar store what tree entries have from `SCHILY.xattr.`.
_OF_ROOT = ("SCHILY.acl.", "LIBARCHIVE.xattr.")


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEntry:
    """One path of a root file system. `mode` holds the permission bits, setuid's among them.

    `owner` is `UID:GID` with the attributes that only root may set. The digest and the equality of
    entries do not include it.
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
    """Return the owner of a tar's member as entries hold it, and what else root's `tar` sets."""
    headers = [item for item in sorted(member.pax_headers.items()) if item[0].startswith(_OF_ROOT)]
    texts = [f"{name}={text!a}" for name, text in (*roots_attributes(member), *headers)]
    names = (("user", member.uname, member.uid), ("group", member.gname, member.gid))
    texts += [f"{key} {name!a}" for key, name, number in names if name not in {"", str(number)}]
    if member.ischr() or member.isblk():
        texts.append(f"device {member.devmajor}:{member.devminor}")
    return " ".join([f"{member.uid}:{member.gid}", *texts])


def clean(name: str) -> str:
    """Return a member's name as a path relative to the root: no leading `./` or `/`."""
    return posixpath.normpath("/" + name.lstrip("/")).lstrip("/")


def is_allowed(path: str) -> bool:
    """Return whether a path is on the allow-list, or below one that is."""
    return any(path[: match.start()] in ALLOWED for match in _ENDS.finditer(path))


def entry_of(member: tarfile.TarInfo, path: str, content: str = "") -> TreeEntry:
    """Return the entry of a tar's member; `content` is the SHA-256 of a regular file.

    The mode of a symbolic link has no meaning on Linux.
    """
    return TreeEntry(
        path=path,
        kind="file" if member.isreg() else _KINDS.get(member.type, "other"),
        mode=0o777 if member.issym() else stat.S_IMODE(member.mode),
        size=member.size if member.isreg() else 0,
        content=content,
        target=member.linkname if member.issym() or member.islnk() else "",
        attributes=() if member.issym() else users_attributes(member),
        owner=owner_of(member),
    )


def comparable(entries: Iterable[TreeEntry]) -> dict[str, TreeEntry]:
    """Return the entries that are not on the allow-list, by path, sorted."""
    counted = {entry.path: entry for entry in entries if not is_allowed(entry.path)}
    return dict(sorted(counted.items()))


def tree_digest(entries: Mapping[str, TreeEntry]) -> str:
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


def differences(first: Mapping[str, TreeEntry], second: Mapping[str, TreeEntry]) -> list[str]:
    """Return the differences of two trees, one line a path."""
    return [f"/{path}: {text}" for path, text in changed_paths(first, second).items()]


def changed_paths(
    first: Mapping[str, TreeEntry], second: Mapping[str, TreeEntry]
) -> dict[str, str]:
    """Return how paths differ between two trees, by path, sorted."""
    return {
        path: _difference(first.get(path), second.get(path))
        for path in sorted(first.keys() | second.keys())
        if first.get(path) != second.get(path)
    }


def _difference(first: TreeEntry | None, second: TreeEntry | None) -> str:
    if first is None or second is None:
        return f"only in the {'second' if first is None else 'first'}"
    return first_difference(first, second)[1]


def first_difference(first: TreeEntry, second: TreeEntry) -> tuple[str, str]:
    """Return the first property in which unequal entries of a path differ, and its description."""
    if first.kind != second.kind:
        return "type", f"{first.kind}, not {second.kind}"
    if (first.size, first.content) != (second.size, second.content):
        return "content", f"different content ({first.size} bytes, not {second.size})"
    if first.target != second.target:
        return "link", f"links to {first.target}, not {second.target}"
    if first.mode != second.mode:
        return "mode", f"mode {first.mode:04o}, not {second.mode:04o}"
    names = sorted({name for name, _ in {*first.attributes} ^ {*second.attributes}})
    return "attributes", f"different extended attribute {', '.join(names)}"


def keeps_owners(entries: Mapping[str, TreeEntry]) -> bool:
    """Return whether a tree has several owners; one packed by an ordinary user has only one.

    An ordinary user's SIF may still have capabilities of files.
    """
    return len({entry.owner.partition(" ")[0] for entry in entries.values()}) > 1


def owner_differences(first: Mapping[str, TreeEntry], second: Mapping[str, TreeEntry]) -> list[str]:
    """Return the paths of two trees whose owners differ, one line each."""
    return [
        f"/{path}: owner {entry.owner}, not {second[path].owner}"
        for path, entry in first.items()
        if path in second and entry.owner != second[path].owner
    ]
