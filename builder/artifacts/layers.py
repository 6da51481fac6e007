"""Reproducible layers: only the changes of each layer, without what differs between two builds.

Times, logs, caches and files that engines leave must not make two builds of an image differ. The
rules look at a path and its bytes alone, so layers that images share stay shared;
docs/reproducible.md gives the reasons in full.

Engines write the changes that their storage driver notices. If a file is given the owner that it
has already, overlay copies it and the folders above it into the layer; vfs compares times and
sizes, and leaves them out. The trees are equal, and so are the layers that are written here: new
and changed paths, the folders that contain them, and removals.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from builder.artifacts.flatten import WHITEOUT, TreeNode, lay_nodes, placed
from builder.artifacts.tars import as_headers, attributes_of
from builder.artifacts.tree import PATHS
from builder.system.home import LENT_AT, PIP_AT

_DAY_S = 86_400
_CHUNK = 1 << 20
_SHOWN = {path.lstrip("/") for path in (LENT_AT, PIP_AT)}  # mounted in build steps
# Engines write the build host's into a layer; runtimes bring their own. Those of the base stay.
STUBS = frozenset(["etc/hosts", "etc/hostname", "etc/resolv.conf"])
_VOLATILE = re.compile("|".join(map(fnmatch.translate, PATHS["volatile"])))
_SHADOW = "etc/shadow"
_MACHINE_ID = "etc/machine-id"
# A .pyc: https://peps.python.org/pep-0552/; since the magic number of 3.7, flags come before the
# source's time. Python 2's magic numbers are above 20000; its files have no flags.
_PYC_MARK = b"\r\n"
_PYC_WITH_FLAGS = range(3392, 20000)


def changes_of(
    layer: Path, below: Mapping[str, TreeNode], *, epoch: int, lowest: bool
) -> Iterator[TreeNode]:
    """Yield the members of a layer in order: a folder before its content, removals first.

    `layer` is a plain tar that an engine wrote, `below` the tree of the layers below.
    """
    changes: dict[str, TreeNode] = {}
    tree = dict(below)
    with tarfile.open(layer, mode="r:") as archive:
        nodes = [placed(layer, member) for member in archive]
    lay_nodes((node for node in nodes if _stays(node, lowest=lowest)), tree)
    if root := next((node for node in reversed(nodes) if not node.path), None):
        tree[""] = root  # a member of the layer, but not a path of the tree
    for path, node in tree.items():
        if node is not below.get(path):
            change = _settled(node, epoch)
            if path not in below or not _is_same(change, below[path], epoch):
                changes[path] = change
    for path in _topmost_removed(tree, below):
        folder, name = posixpath.split(path)
        whiteout = tarfile.TarInfo(posixpath.join(folder, WHITEOUT + name))
        whiteout.mtime = epoch
        changes[whiteout.name] = TreeNode(path=whiteout.name, member=whiteout, data=b"")
    # Without its folder in the layer, a path would give the lower tree's folder another mode.
    for folder in {parent for path in changes for parent in _parents(path)} - changes.keys():
        if folder in tree:
            changes[folder] = _settled(tree[folder], epoch)
    first_names: dict[tuple[Path, int], str] = {}
    for path in sorted(changes, key=_order):
        yield _linked(changes[path], first_names)


def _stays(node: TreeNode, *, lowest: bool) -> bool:
    if node.path in _SHOWN:
        return False
    folder, name = posixpath.split(node.path)
    path = posixpath.join(folder, name.removeprefix(WHITEOUT))  # which a whiteout removes
    return node.member.isdir() or is_kept(path, lowest=lowest)


def _settled(node: TreeNode, epoch: int) -> TreeNode:
    member = settled(node.member, node.path, epoch)
    if not member.isreg() or not is_rewritten(node.path):
        return replace(node, member=member)
    data = rewritten(node.path, node.read(), epoch)
    member.size = len(data)
    return replace(node, member=member, data=data)


def _topmost_removed(tree: Mapping[str, TreeNode], below: Mapping[str, TreeNode]) -> Iterator[str]:
    """Yield the paths removed from the lower tree, except those removed with their folder."""
    removed = below.keys() - tree.keys()
    for path in removed:
        if not any(
            parent in removed or (parent in tree and not tree[parent].member.isdir())
            for parent in _parents(path)
        ):
            yield path


def _is_same(new: TreeNode, old: TreeNode, epoch: int) -> bool:
    """Return whether a settled node equals the one below it."""
    if _header(new.member) != _header(settled(old.member, old.path, epoch)):
        return False
    if not new.member.isreg():
        return True
    with new.open() as data, old.open() as before:
        chunks = iter(lambda: data.read(_CHUNK), b"")
        return all(chunk == before.read(len(chunk)) for chunk in chunks)


def _header(member: tarfile.TarInfo) -> tuple[object, ...]:
    return (
        *(member.type, member.mode, member.uid, member.gid, member.mtime),
        *(member.size if member.isreg() else 0, member.linkname),
        *(member.devmajor, member.devminor, member.pax_headers),
    )


def _linked(node: TreeNode, first_names: dict[tuple[Path, int], str]) -> TreeNode:
    """Return a node, or a hard link to the name under which its content was written."""
    if node.source is None:
        return node
    first = first_names.setdefault((node.source, node.offset), node.path)
    if first == node.path:
        return node
    link, file = tarfile.TarInfo(node.path), node.member
    link.type, link.linkname = tarfile.LNKTYPE, first
    link.mode, link.uid, link.gid, link.mtime = file.mode, file.uid, file.gid, file.mtime
    return replace(node, member=link)


def _parents(path: str) -> Iterator[str]:
    """Yield the folders above a path, without the root."""
    while path := path.rpartition("/")[0]:
        yield path


def _order(path: str) -> list[tuple[bool, str]]:
    """Return the sort key of a path: folders before what is in them, and removals first."""
    return [(not part.startswith(WHITEOUT), part) for part in path.split("/")]


def is_kept(path: str, *, lowest: bool) -> bool:
    """Return whether a file, or its whiteout, stays in a layer; `lowest` is the base's."""
    return _VOLATILE.match(path) is None and (lowest or path not in STUBS)


def settled(member: tarfile.TarInfo, path: str, epoch: int) -> tarfile.TarInfo:
    """Return a member with only what counts: type, mode, owner, content, links, attributes.

    Times are clamped to `epoch`. Older times stay, so no file becomes newer than its sources. A
    folder's time is always `epoch`: its own also reflects changes of files that are not kept.
    """
    new = tarfile.TarInfo(path or ".")
    new.type, new.size, new.linkname = member.type, member.size, member.linkname
    new.mode = 0o777 if member.issym() else member.mode & 0o7777
    new.uid, new.gid = member.uid, member.gid
    new.devmajor, new.devminor = member.devmajor, member.devminor
    new.mtime = epoch if member.isdir() else max(0, min(int(member.mtime), epoch))
    new.pax_headers = as_headers(attributes_of(member))
    return new


def is_rewritten(path: str) -> bool:
    """Return whether a file's content goes through `rewritten`."""
    return path.endswith((".pyc", ".pyo")) or path in {_SHADOW, _MACHINE_ID}


def rewritten(path: str, data: bytes, epoch: int) -> bytes:
    """Return a file's content without the time of the build.

    A .pyc holds the time of its source. Both times are clamped alike, so it stays valid.
    """
    if path == _MACHINE_ID:
        return b""
    if path == _SHADOW:
        return b"".join(_shadow_line(line, epoch) for line in data.splitlines(keepends=True))
    return _pyc(data, epoch)


def _pyc(data: bytes, epoch: int) -> bytes:
    if data[2:4] != _PYC_MARK:
        return data
    at = 4
    if int.from_bytes(data[:2], "little") in _PYC_WITH_FLAGS:
        if data[4:8] != bytes(4):  # checked by the source's hash, not by its time
            return data
        at = 8
    if len(data) < at + 4:
        return data
    time = int.from_bytes(data[at : at + 4], "little")
    return data[:at] + min(time, epoch).to_bytes(4, "little") + data[at + 4 :]


def _shadow_line(line: bytes, epoch: int) -> bytes:
    """Limit the third field of a line of shadow(5), the day of the last change, to `epoch`."""
    fields = line.split(b":")
    if len(fields) > 2 and fields[2].isdigit():  # noqa: PLR2004 - name, password, day
        fields[2] = str(min(int(fields[2]), epoch // _DAY_S)).encode()
    return b":".join(fields)
