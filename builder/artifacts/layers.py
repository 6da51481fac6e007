"""Layers as images have them: without what two builds may differ in, and only what each changes.

Two builds of one image may not differ in times, logs, caches, and what engines leave. All of that
is decided from a path and its bytes alone, so that layers which images share stay shared;
docs/reproducible.md gives the reasons at length.

Engines write down what their storage driver noticed. Overlay copies up a file that got the owner
which it had, and the folders above it; vfs compares times and sizes, and leaves both out. The trees
are the same all the same, and so are the layers that are written here: what is new or otherwise
than below, the folders in which that is, and what is gone.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import posixpath
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from builder.artifacts.flatten import OPAQUE, WHITEOUT, TreeNode
from builder.artifacts.tars import as_headers, attributes_of
from builder.artifacts.tree import PATHS, clean
from builder.model import EPOCH
from builder.model.errors import BadInput, StepFailed
from builder.system.home import LENT_AT, PIP_AT

VARIABLE = "SOURCE_DATE_EPOCH"
_LATEST = 1 << 32  # a .pyc holds its source's time in 32 bits
_DAY_S = 86_400
_CHUNK = 1 << 20
_SHOWN = {path.lstrip("/") for path in (LENT_AT, PIP_AT)}  # to build steps, from this machine
# Engines put the build host's in a layer; runtimes bring their own. Those of the base stay.
STUBS = frozenset(["etc/hosts", "etc/hostname", "etc/resolv.conf"])
_VOLATILE = re.compile("|".join(map(fnmatch.translate, PATHS["volatile"])))
_SHADOW = "etc/shadow"
_MACHINE_ID = "etc/machine-id"
# A .pyc: https://peps.python.org/pep-0552/; since the magic number of 3.7, flags come before the
# source's time. Python 2's numbers are above 20000, and its time comes second, too.
_PYC_MARK = b"\r\n"
_PYC_WITH_FLAGS = range(3392, 20000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A member of a layer as it is written. `node` has a file's content, unless `data` is that."""

    member: tarfile.TarInfo
    node: TreeNode | None = None
    data: bytes | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the content of a regular file."""
        if self.data is not None:
            yield io.BytesIO(self.data)
        else:
            assert self.node is not None
            with self.node.open() as stream:
                yield stream


def changes_of(
    layer: Path, below: Mapping[str, TreeNode], *, epoch: int, lowest: bool
) -> Iterator[Change]:
    """Yield the members of a layer in order: folders first, and in them what the layer removes.

    `layer` is a plain tar that an engine wrote, `below` the tree on which it lies.
    """
    members = _members(layer, lowest=lowest)
    upper: dict[str, Change] = {}
    gone: set[str] = set()
    emptied: set[str] = set()
    for path, member in members.items():
        folder, name = posixpath.split(path)
        if name == OPAQUE:
            emptied.add(folder)
        elif name.startswith(WHITEOUT):
            gone.add(_meant(path))
        else:
            upper[path] = _settled(layer, member, path, members, below, epoch)
    changes = {
        path: change
        for path, change in upper.items()
        if path not in below or not _is_same(change, below[path], epoch)
    }
    for path in _topmost_removed(upper, below, gone, emptied):
        whiteout = tarfile.TarInfo(_whiteout_of(path))
        whiteout.mtime = epoch
        changes[whiteout.name] = Change(member=whiteout, data=b"")
    for folder in {parent for path in changes for parent in _parents(path)} - changes.keys():
        # A layer without a folder of the lower tree would give it another mode.
        if folder in upper:
            changes[folder] = upper[folder]
        elif node := below.get(folder):
            changes[folder] = Change(member=settled(node.member, folder, epoch))
    first_names: dict[tuple[Path | None, int], str] = {}
    for path in sorted(changes, key=_order):
        yield _linked(changes[path], path, first_names)


def _members(layer: Path, *, lowest: bool) -> dict[str, tarfile.TarInfo]:
    """Return the members that images keep, by path; the last of a path counts."""
    members: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(layer, mode="r:") as archive:
        for member in archive:
            path = clean(member.name)
            is_image = member.isdir() or is_kept(_meant(path), lowest=lowest)
            if is_image and path not in _SHOWN:
                members[path] = member
    return members


def _settled(
    layer: Path,
    member: tarfile.TarInfo,
    path: str,
    members: Mapping[str, tarfile.TarInfo],
    below: Mapping[str, TreeNode],
    epoch: int,
) -> Change:
    member = _target(member, members)
    if member.islnk():  # to a file of a layer below: drivers that copy it up have it as a file
        target = clean(member.linkname)
        if target not in below:
            raise StepFailed(f"/{path}: a hard link to /{target}, which is not there")
        node = below[target]
        return Change(member=settled(node.member, path, epoch), node=node)
    new = settled(member, path, epoch)
    if not member.isreg():
        return Change(member=new)
    node = TreeNode(
        path=path, member=member, source=layer, offset=member.offset_data, size=member.size
    )
    if not is_rewritten(path):
        return Change(member=new, node=node)
    data = rewritten(path, node.read(), epoch)
    new.size = len(data)
    return Change(member=new, node=node, data=data)


def _target(member: tarfile.TarInfo, members: Mapping[str, tarfile.TarInfo]) -> tarfile.TarInfo:
    """Return the member that a hard link names; itself where that is in another layer."""
    seen = set()
    while member.islnk() and member.offset not in seen:
        seen.add(member.offset)
        member = members.get(clean(member.linkname), member)
    return member


def _topmost_removed(
    upper: Mapping[str, Change], below: Mapping[str, TreeNode], gone: set[str], emptied: set[str]
) -> Iterator[str]:
    """Yield the paths of the lower tree that a layer removes from folders which stay."""
    files = {path for path, change in upper.items() if not change.member.isdir()}
    replaced = {path for path in files if path in below and below[path].member.isdir()}
    closed = gone | emptied | replaced
    removed = {
        path
        for path in (below.keys() - upper.keys() if closed else ())
        if path in gone or not closed.isdisjoint(["", *_parents(path)])
    }
    for path in removed:
        parents = [*_parents(path)]
        if removed.isdisjoint(parents) and files.isdisjoint(parents):
            yield path


def _is_same(change: Change, node: TreeNode, epoch: int) -> bool:
    """Return whether a path is what it was."""
    if _header(change.member) != _header(settled(node.member, change.member.name, epoch)):
        return False
    if not change.member.isreg():
        return True
    with change.open() as new, node.open() as old:
        return all(chunk == old.read(len(chunk)) for chunk in iter(lambda: new.read(_CHUNK), b""))


def _header(member: tarfile.TarInfo) -> tuple[object, ...]:
    return (
        *(member.type, member.mode, member.uid, member.gid, member.mtime),
        *(member.size if member.isreg() else 0, member.linkname),
        *(member.devmajor, member.devminor, member.pax_headers),
    )


def _linked(change: Change, path: str, first_names: dict[tuple[Path | None, int], str]) -> Change:
    """Return a change, or a hard link to the name under which its content was written."""
    if change.node is None:
        return change
    first = first_names.setdefault((change.node.source, change.node.offset), path)
    if first == path:
        return change
    link, file = tarfile.TarInfo(path), change.member
    link.type, link.linkname = tarfile.LNKTYPE, first
    link.mode, link.uid, link.gid, link.mtime = file.mode, file.uid, file.gid, file.mtime
    return Change(member=link)


def _parents(path: str) -> Iterator[str]:
    """Yield the folders above a path, without the root."""
    while path := path.rpartition("/")[0]:
        yield path


def _order(path: str) -> list[tuple[bool, str]]:
    """Return the sort key of a path: folders before what is in them, and removals first."""
    return [(not part.startswith(WHITEOUT), part) for part in path.split("/")]


def _whiteout_of(path: str) -> str:
    folder, name = posixpath.split(path)
    return posixpath.join(folder, WHITEOUT + name)


def _meant(path: str) -> str:
    """Return the path that a whiteout is about; any other as it is."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, name.removeprefix(WHITEOUT))


def epoch_of(environment: Mapping[str, str]) -> int:
    """Return the latest time that a time stamp may have: $SOURCE_DATE_EPOCH, else our own.

    Seconds since 1970, https://reproducible-builds.org/specs/source-date-epoch/
    """
    text = environment.get(VARIABLE, "")
    if not text:
        return EPOCH
    if not (text.isascii() and text.isdecimal() and int(text) < _LATEST):
        raise BadInput(
            f"{VARIABLE}={text} is not a number of seconds since 1970",
            hint="unset it, or set it as in: SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)",
        )
    return int(text)


def is_kept(path: str, *, lowest: bool) -> bool:
    """Return whether a file, or its whiteout, stays in a layer; `lowest` is the base's."""
    return _VOLATILE.match(path) is None and (lowest or path not in STUBS)


def settled(member: tarfile.TarInfo, path: str, epoch: int) -> tarfile.TarInfo:
    """Return a member with what counts alone: type, mode, owner, content, links, attributes.

    Times are clamped to `epoch`: what is older stays as it is, so nothing gets newer than what
    it was made from. A folder's is `epoch`: it tells when something was made or removed in there,
    also of what is not kept.
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

    A .pyc holds the time of its source, which is clamped here as there: it does not go stale.
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
    """The third field of shadow(5) is the day of the last change, in days since 1970."""
    fields = line.split(b":")
    if len(fields) > 2 and fields[2].isdigit():  # noqa: PLR2004 - name, password, day
        fields[2] = str(min(int(fields[2]), epoch // _DAY_S)).encode()
    return b":".join(fields)
