"""Apply layers with our own code, on disk or only to compute the tree digest.

The rules are those of builder.artifacts.flatten, and give the same tree digest. The layers are not
trusted, so content that no valid layer has is refused: paths that lead outside, paths below a link,
devices outside of /dev, decompression bombs.
https://github.com/opencontainers/image-spec/blob/v1.1.0/layer.md
"""

from __future__ import annotations

import dataclasses
import stat
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.artifacts.flatten import OPAQUE, WHITEOUT
from builder.artifacts.oci import Layout
from builder.artifacts.tars import users_attributes
from builder.artifacts.tree import TreeEntry, comparable, entry_of, tree_digest
from builder.distribute.pull.folders import Root, kept_mode
from builder.distribute.pull.members import (
    Content,
    Laid,
    checked_path,
    members,
    named,
    sha256_of_content,
    shown,
)
from builder.distribute.pull.receipts import Changes
from builder.distribute.pull.streams import LIMITS, opened
from builder.model.errors import Refused

_SHOWN = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Unpacked:
    """Result of unpacking layers: tree digest, number of paths, paths left out or changed.

    `changes` has the number of changed paths and the first 20 of them, by the kind of change.
    `on_disk` is the tree digest of the folder as it was written, with changed modes.
    """

    tree: str
    paths: int
    changes: Mapping[str, Changes] = field(default_factory=dict)
    on_disk: str = ""


def unpack(
    layers: Iterable[tuple[str, Iterable[Laid]]],
    target: Path | None,
    *,
    files: Mapping[str, bytes] | None = None,
    folders: Iterable[str] = (),
) -> Unpacked:
    """Apply layers, each a digest and its members, the lowest first.

    They are written to `target`, an empty folder, or only read if it is None. Then `folders` are
    made where nothing exists, and `files` are written. Raises `Refused`, with the layer's digest,
    for content that must not be unpacked; the caller then removes what was written.
    """
    root = Root(target) if target else None
    laying = _Laying(root)
    try:
        for digest, layer in layers:
            laying.begin_layer()
            with named(digest):
                for member, path, content in layer:
                    laying.lay(member, path, content)
        laying.begin_layer()
        for path in folders:
            laying.lay_folder(path)
        for path, data in (files or {}).items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            laying.lay(member, path, [data])
        return laying.result()
    finally:
        if root:
            root.close()


def read(blob: Path, digest: str, diff_id: str = "") -> Iterator[Laid]:
    """Yield the members of a layer's blob; `opened` says which blobs are refused."""
    with opened(blob, digest, diff_id) as stream:
        yield from members(stream)


def tree_of_layout(layout: Layout) -> str:
    """Return the tree digest of a layout; raises `Refused` for a layer with another digest."""
    layers = ((f"sha256:{blob.name}", blob) for blob in layout.layers)
    return unpack(((digest, read(blob, digest)) for digest, blob in layers), None).tree


class _Laying:
    """The tree so far; it is written to `root`, unless that is None.

    `_entries` has None for folders that no layer contains. `_fresh` are the paths of the current
    layer: its whiteouts hide only paths of lower layers. `_hidden` are the whiteouts of the current
    layer: a second one for the same path has no effect.
    """

    def __init__(self, root: Root | None) -> None:
        self._fresh: set[str] = set()
        self._hidden: set[tuple[str, bool]] = set()
        self._root = root
        self._entries: dict[str, TreeEntry | None] = {"": None}
        self._below: dict[str, set[str]] = {}
        self._times: dict[str, float] = {}
        self._seen = self._size = 0
        self._changes: dict[str, list[str]] = defaultdict(list)

    def begin_layer(self) -> None:
        """Begin the next layer, or the files and folders on top of all layers."""
        self._fresh, self._hidden = set(), set()

    def lay(self, member: tarfile.TarInfo, path: str, content: Content) -> None:
        """Apply one member to the tree."""
        self._seen += 1
        self._size += member.size
        LIMITS.check_entries(self._seen)
        if self._size > LIMITS.plain:
            raise Refused(f"possible decompression bomb: more than {LIMITS.plain:,} bytes")
        folder, _, name = path.rpartition("/")
        if name == OPAQUE:
            self._hide(folder, itself=False)
        elif name.startswith(WHITEOUT):
            hidden = name[len(WHITEOUT) :]
            if hidden in {"", ".", ".."}:
                raise Refused(f"/{shown(path)}: a whiteout without a name")
            self._hide(f"{folder}/{hidden}" if folder else hidden, itself=True)
        elif path:
            self._place(member, path, folder, content)

    def lay_folder(self, path: str) -> None:
        """Make a folder unless the path exists."""
        if path not in self._entries:
            member = tarfile.TarInfo(path)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            self.lay(member, path, [])

    def _place(self, member: tarfile.TarInfo, path: str, folder: str, content: Content) -> None:
        if member.isdev() and not member.isfifo():
            if folder.partition("/")[0] != "dev":
                raise Refused(f"/{shown(path)}: a device outside of /dev")
            self._changes["devices that were left out, which runtimes make"].append(path)
            self._hide(path, itself=True)
            return
        self._make_parents(path)
        if member.islnk():
            target = checked_path(member.linkname)
            if target == path:
                raise Refused(f"/{shown(path)}: a hard link to itself")
            self._clear(path, folder=False)
            entry = self._another_name(path, target)
        else:
            self._clear(path, folder=member.isdir())
            entry = self._make(member, path, content)
        self._entries[path] = entry
        self._below.setdefault(folder, set()).add(path)
        self._fresh.add(path)

    def _kind(self, path: str) -> str:
        """Return the kind of file at a path; empty if the path does not exist."""
        if path not in self._entries:
            return ""
        entry = self._entries[path]
        return entry.kind if entry else "directory"

    def _make(self, member: tarfile.TarInfo, path: str, content: Content) -> TreeEntry:
        mode = stat.S_IMODE(member.mode)
        on_disk = kept_mode(mode, folder=member.isdir())
        if self._root:
            self._note_changes(member, path, on_disk)
        if not member.isreg():
            if self._root:
                self._write_special(self._root, member, path, on_disk)
            return entry_of(member, path)
        if self._root:
            digest = self._root.file(path, content, on_disk, member.mtime)
        else:
            digest = sha256_of_content(content)
        return entry_of(member, path, digest)

    def _note_changes(self, member: tarfile.TarInfo, path: str, on_disk: int) -> None:
        mode = stat.S_IMODE(member.mode)
        if not member.issym() and mode & (stat.S_ISUID | stat.S_ISGID):
            self._changes["setuid and setgid bits that were dropped"].append(path)
        if not member.issym() and on_disk & ~mode:
            self._changes["paths that were made readable for their owner"].append(path)
        if users_attributes(member):
            self._changes["extended attributes that were left out"].append(path)

    def _write_special(self, root: Root, member: tarfile.TarInfo, path: str, mode: int) -> None:
        if member.isdir():
            root.folder(path)
            self._times[path] = member.mtime
        elif member.issym():
            root.link(path, member.linkname, member.mtime)
        else:
            root.pipe(path, mode)

    def _another_name(self, path: str, target: str) -> TreeEntry:
        linked = self._entries.get(target)
        if linked is None or linked.kind == "directory":
            raise Refused(
                f"/{shown(path)}: a hard link to /{shown(target)}, which is missing or a folder"
            )
        if self._root:
            self._root.same(path, target)
        return dataclasses.replace(linked, path=path)

    def _make_parents(self, path: str) -> None:
        """Make the missing parents of a path; refuse a parent that is not a folder."""
        parent = path.rpartition("/")[0]
        missing = []
        while parent not in self._entries:
            missing.append(parent)
            parent = parent.rpartition("/")[0]
        if self._kind(parent) != "directory":
            above = f"its parent /{shown(parent)} is a {self._kind(parent)}, not a folder"
            raise Refused(f"/{shown(path)}: {above}")
        for folder in reversed(missing):
            if self._root:
                self._root.folder(folder)
            self._entries[folder] = None
            self._below.setdefault(folder.rpartition("/")[0], set()).add(folder)

    def _clear(self, path: str, *, folder: bool) -> None:
        """Remove what exists at a path, but keep a folder if the new member is a folder, too."""
        kind = self._kind(path)
        if not kind or (folder and kind == "directory"):
            return
        if kind == "directory":
            self._hide(path, itself=True)
            if path in self._entries:
                raise Refused(f"/{shown(path)}: a non-empty folder, and also another kind of file")
        else:
            self._drop(path)

    def _hide(self, path: str, *, itself: bool) -> None:
        """Remove what lower layers have at a path and below it; once for each path and layer."""
        if (path, itself) in self._hidden:
            return
        self._hidden.add((path, itself))
        order, todo = [], [path]
        while todo:
            current = todo.pop()
            if current in self._entries:
                order.append(current)
                todo += self._below.get(current, ())
        for current in reversed(order):  # files before their folder
            if current in self._fresh or (current == path and not itself):
                continue
            if self._below.get(current):
                self._entries[current] = None  # it contains files of this layer
            else:
                self._drop(current)

    def _drop(self, path: str) -> None:
        if self._root:
            self._root.remove(path, folder=self._kind(path) == "directory")
        del self._entries[path]
        self._below.pop(path, None)
        self._times.pop(path, None)
        self._below[path.rpartition("/")[0]].discard(path)
        self._fresh.discard(path)

    def result(self) -> Unpacked:
        """Set the modes of written folders, and return the result with the digest of the tree."""
        on_disk = ""
        if self._root:
            written = {path: self._as_written(path) for path in self._entries if path}
            for path, entry in sorted(written.items()):
                if entry.kind == "directory":
                    self._root.settle(path, entry.mode, self._times.get(path, 0))
            on_disk = tree_digest(comparable(written.values()))
        entries = comparable(filter(None, self._entries.values()))
        return Unpacked(
            tree=tree_digest(entries),
            paths=len(entries),
            changes={
                kind: Changes(
                    count=len(paths), paths=tuple(f"/{shown(path)}" for path in paths[:_SHOWN])
                )
                for kind, paths in self._changes.items()
            },
            on_disk=on_disk,
        )

    def _as_written(self, path: str) -> TreeEntry:
        """Return a path as it is on disk; folders that no layer contains have the mode 0755."""
        entry = self._entries.get(path) or TreeEntry(path=path, kind="directory", mode=0o755)
        mode = kept_mode(entry.mode, folder=entry.kind == "directory")
        return dataclasses.replace(entry, mode=mode, attributes=())
