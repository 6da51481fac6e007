"""What a layer changes of the tree below it, worked out from the two trees alone.

Engines write down what their storage driver noticed. Overlay copies up a file that got the owner
which it had, and the folders above it; vfs compares times and sizes, and leaves both out. The trees
are the same all the same, and so are the layers that are written here: what is new or otherwise
than below, the folders in which that is, and what is gone.
"""

from __future__ import annotations

import contextlib
import io
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from builder.artifacts import settled
from builder.artifacts.flatten import OPAQUE, WHITEOUT, Node
from builder.artifacts.tree import clean
from builder.model.errors import StepFailed
from builder.system.home import LENT_AT, PIP_AT

_SHOWN = {path.lstrip("/") for path in (LENT_AT, PIP_AT)}  # to build steps, from this machine
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A member of a layer as it is written. `node` has a file's content, unless `data` is that."""

    member: tarfile.TarInfo
    node: Node | None = None
    data: bytes | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The content of a regular file."""
        if self.data is not None:
            yield io.BytesIO(self.data)
        else:
            assert self.node is not None
            with self.node.open() as stream:
                yield stream


def changes_of(
    layer: Path, below: Mapping[str, Node], *, epoch: int, lowest: bool
) -> Iterator[Change]:
    """The members of a layer in order: folders come first, and in them what the layer removes.

    `layer` is a plain tar that an engine wrote, `below` the tree on which it lies.
    """
    read = _Layer.read(layer, below, epoch=epoch, lowest=lowest)
    removed = read.removed(below)
    members = {
        path: change
        for path, change in read.upper.items()
        if path not in below or not _is_same(change, below[path], epoch)
    }
    members |= {_whiteout_of(path): _whiteout(path, epoch) for path in read.topmost(removed)}
    for folder in {parent for path in members for parent in _parents(path)} - members.keys():
        if change := read.upper.get(folder) or _as_below(folder, below, epoch):
            members[folder] = change
    first_names: dict[tuple[Path | None, int], str] = {}
    for path in sorted(members, key=_order):
        yield _linked(members[path], path, first_names)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """What an engine's layer says: its paths, those that it removes, and folders that it empties.

    What it says of files that no image keeps is left out.
    """

    upper: dict[str, Change] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, layer: Path, below: Mapping[str, Node], *, epoch: int, lowest: bool) -> _Layer:
        found = cls()
        members = _members(layer, lowest=lowest)
        for path, member in members.items():
            folder, name = posixpath.split(path)
            if name == OPAQUE:
                found.emptied.add(folder)
            elif name.startswith(WHITEOUT):
                found.gone.add(_meant(path))
            else:
                found.upper[path] = _settled(layer, member, path, members, below, epoch)
        return found

    def removed(self, below: Mapping[str, Node]) -> set[str]:
        """The paths of the lower tree that the layer leaves out of the upper one."""
        files = {path for path, change in self.upper.items() if not change.member.isdir()}
        replaced = {path for path in files if path in below and below[path].member.isdir()}
        closed = self.gone | self.emptied | replaced
        return {
            path
            for path in (below.keys() - self.upper.keys() if closed else ())
            if path in self.gone or not closed.isdisjoint(["", *_parents(path)])
        }

    def topmost(self, removed: set[str]) -> Iterator[str]:
        """Those of the removed paths that are in folders which stay."""
        for path in removed:
            parents = [*_parents(path)]
            stay = (one not in self.upper or self.upper[one].member.isdir() for one in parents)
            if removed.isdisjoint(parents) and all(stay):
                yield path


def _members(layer: Path, *, lowest: bool) -> dict[str, tarfile.TarInfo]:
    """The members that images keep, by path; the last of a path counts."""
    members: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(layer, mode="r:") as archive:
        for member in archive:
            path = clean(member.name)
            if path in _SHOWN:
                continue
            if member.isdir() or settled.is_kept(_meant(path), lowest=lowest):
                members[path] = member
    return members


def _settled(
    layer: Path,
    member: tarfile.TarInfo,
    path: str,
    members: Mapping[str, tarfile.TarInfo],
    below: Mapping[str, Node],
    epoch: int,
) -> Change:
    member = _target(member, members)
    if member.islnk():
        return _as_linked(member, path, below, epoch)
    new = settled.settled(member, path, epoch)
    if not member.isreg():
        return Change(member=new)
    node = Node(path=path, member=member, source=layer, offset=member.offset_data, size=member.size)
    if not settled.is_rewritten(path):
        return Change(member=new, node=node)
    data = settled.rewritten(path, node.read(), epoch)
    new.size = len(data)
    return Change(member=new, node=node, data=data)


def _target(member: tarfile.TarInfo, members: Mapping[str, tarfile.TarInfo]) -> tarfile.TarInfo:
    """The member that a hard link is another name of; itself where that is in another layer."""
    seen = set()
    while member.islnk() and member.offset not in seen:
        seen.add(member.offset)
        found = members.get(clean(member.linkname))
        if found is None:
            break
        member = found
    return member


def _as_linked(link: tarfile.TarInfo, path: str, below: Mapping[str, Node], epoch: int) -> Change:
    """A hard link to a file of a layer below as a file: drivers that copy it up have it so."""
    node = below.get(clean(link.linkname))
    if node is None:
        raise StepFailed(f"/{path}: a hard link to /{clean(link.linkname)}, which is not there")
    return Change(member=settled.settled(node.member, path, epoch), node=node)


def _as_below(path: str, below: Mapping[str, Node], epoch: int) -> Change | None:
    """A folder as the lower tree has it; a layer without it would give it another mode."""
    node = below.get(path)
    return Change(member=settled.settled(node.member, path, epoch)) if node else None


def _whiteout_of(path: str) -> str:
    folder, name = posixpath.split(path)
    return posixpath.join(folder, WHITEOUT + name)


def _whiteout(path: str, epoch: int) -> Change:
    member = tarfile.TarInfo(_whiteout_of(path))
    member.mtime = epoch
    return Change(member=member, data=b"")


def _is_same(change: Change, node: Node, epoch: int) -> bool:
    """Return whether a path is what it was."""
    old = settled.settled(node.member, change.member.name, epoch)
    if _header(change.member) != _header(old):
        return False
    if not change.member.isreg():
        return True
    with change.open() as one, node.open() as other:
        return all(piece == other.read(len(piece)) for piece in iter(lambda: one.read(_CHUNK), b""))


def _header(member: tarfile.TarInfo) -> tuple[object, ...]:
    return (
        *(member.type, member.mode, member.uid, member.gid, member.mtime),
        *(member.size if member.isreg() else 0, member.linkname),
        *(member.devmajor, member.devminor, member.pax_headers),
    )


def _linked(change: Change, path: str, first_names: dict[tuple[Path | None, int], str]) -> Change:
    """A change, or a hard link to the name under which its content was written."""
    if change.node is None:
        return change
    place = change.node.source, change.node.offset
    first = first_names.setdefault(place, path)
    if first == path:
        return change
    link, file = tarfile.TarInfo(path), change.member
    link.type, link.linkname = tarfile.LNKTYPE, first
    link.mode, link.uid, link.gid, link.mtime = file.mode, file.uid, file.gid, file.mtime
    return Change(member=link)


def _parents(path: str) -> Iterator[str]:
    """The folders above a path, without the root."""
    while path := path.rpartition("/")[0]:
        yield path


def _order(path: str) -> list[tuple[bool, str]]:
    """Folders before what is in them, and first what a layer removes."""
    return [(not part.startswith(WHITEOUT), part) for part in path.split("/")]


def _meant(path: str) -> str:
    """The path that a whiteout is about; any other as it is."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, name.removeprefix(WHITEOUT))
