"""Flatten the layers of an OCI image to one tree, which is read in place.

https://github.com/opencontainers/image-spec/blob/v1.1.0/layer.md: an entry of an upper layer
replaces that of a lower one, `.wh.NAME` removes NAME, `.wh..wh..opq` hides what lower layers have
in its folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import posixpath
import tarfile
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from builder.artifacts.oci import Layout, opened_layer
from builder.artifacts.tree import TreeEntry, clean, entry_of
from builder.model.digests import sha256_of
from builder.model.errors import StepFailed

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_CHUNK = 1 << 16
_DESCRIBING = frozenset(["ch/environment", "opt/build-images/host-contract.json"])
MOUNT_POINTS = frozenset(["dev", "proc", "run", "sys", "tmp"])
_LARGEST = 1 << 20  # bytes of a file that describes an image, at most
_NOT_READ = b"\0"  # stands for a larger file or a link: equals no content that is expected


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeNode:
    """One path of the flattened tree. A regular file's content lies in `source` at `offset`.

    Nodes with the same source and offset are hard links to each other. Without a source, the
    content was read before, and `content` is its SHA-256. With `data`, that is the content.
    """

    path: str
    member: tarfile.TarInfo
    source: Path | None = None
    offset: int = 0
    size: int = 0
    content: str = ""
    data: bytes | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the content of a regular file, as a stream of exactly `size` bytes."""
        if self.data is not None:
            yield io.BytesIO(self.data)
            return
        assert self.source is not None
        with self.source.open("rb") as file:
            file.seek(self.offset)
            yield cast("IO[bytes]", _Window(file, self.size))

    def read(self) -> bytes:
        """Return the content of a regular file."""
        with self.open() as data:
            return data.read()


class _Window(io.RawIOBase):
    """A stream over the next `size` bytes of a file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        super().__init__()
        self._file, self._remaining = file, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        most = self._remaining if size < 0 else min(size, self._remaining)
        data = self._file.read(most)
        self._remaining -= len(data)
        return data


def flattened(layout: Layout) -> dict[str, TreeNode]:
    """Return the nodes of an image by path, sorted; its layers are plain tars that stay in place.

    Layers are not checked against their digests here: `unpack` and `repack` made them.
    """
    nodes: dict[str, TreeNode] = {}
    for blob in layout.layers:
        lay(blob, nodes)
    return dict(sorted(nodes.items()))


def lay(blob: Path, nodes: dict[str, TreeNode]) -> None:
    """Lay a layer, a plain tar, over the nodes of the layers below."""
    with tarfile.open(blob, mode="r:") as archive:
        lay_nodes((placed(blob, member) for member in archive), nodes)


def entries(nodes: Mapping[str, TreeNode]) -> Iterator[TreeEntry]:
    """Yield the nodes as entries of the tree digest; hard links are hashed once."""
    known: dict[tuple[Path, int], str] = {}
    for path, node in nodes.items():
        _check_parent(path, nodes)
        content = node.content
        if node.source is not None:
            place = (node.source, node.offset)
            if place not in known:
                with node.open() as data:
                    known[place] = sha256_of(data)
            content = known[place]
        yield entry_of(node.member, path, content)


def entries_of_tar(
    stream: IO[bytes], retained: dict[str, bytes] | None = None
) -> Iterator[TreeEntry]:
    """Return the entries of a tar of a root file system, read once from start to end.

    `retained` receives the contents of the files that describe an image (`describes`).
    """
    nodes: dict[str, TreeNode] = {}
    for node in _hashed(stream, retained):
        _check_parent(node.path, nodes)
        nodes[node.path] = _linked(node, nodes, {}) if node.member.islnk() else node
    nodes.pop("", None)
    for name in MOUNT_POINTS & nodes.keys():
        if not nodes[name].member.isdir():  # a link: what is mounted would hide another folder
            raise StepFailed(f"/{name} is a link or a file; runtimes mount a folder there")
    return entries(nodes)


def entries_of_layout(
    layout: Layout, retained: dict[str, bytes] | None = None
) -> Iterator[TreeEntry]:
    """Return the entries of an image; read each blob once, and check it against its digests.

    `retained` receives the contents of the files that describe an image (`describes`).
    """
    nodes: dict[str, TreeNode] = {}
    for blob, diff_id in zip(layout.layers, layout.diff_ids, strict=False):
        with opened_layer(blob, diff_id) as stream:
            lay_nodes(_hashed(stream, retained), nodes)
    return entries(nodes)


def placed(layer: Path, member: tarfile.TarInfo) -> TreeNode:
    """Return the node of a member of a plain tar, with the place of a file's content."""
    return TreeNode(
        path=clean(member.name),
        member=member,
        source=layer if member.isreg() else None,
        offset=member.offset_data,
        size=member.size,
    )


def _hashed(stream: IO[bytes], retained: dict[str, bytes] | None) -> Iterator[TreeNode]:
    """Yield the nodes of a tar that is read once, with the SHA-256 of each file."""
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as archive:
        for member in archive:
            path = clean(member.name)
            data = archive.extractfile(member) if member.isreg() else None
            if retained is not None and describes(path) and not member.isdir():
                retained[path] = _NOT_READ
                if data and member.size <= _LARGEST:
                    retained[path] = data.read()
                    data = io.BytesIO(retained[path])
            content = sha256_of(data) if data else ""
            yield TreeNode(path=path, member=member, size=member.size, content=content)


def describes(path: str) -> bool:
    """Return whether a file describes an image: its variables, labels or scripts."""
    return path in _DESCRIBING or path.startswith(".singularity.d/")


def lay_nodes(layer: Iterable[TreeNode], nodes: dict[str, TreeNode]) -> None:
    """Lay one layer over the nodes of the layers below."""
    upper: dict[str, TreeNode] = {}
    both = ChainMap(upper, nodes)
    for node in layer:
        _check_parent(node.path, both)
        folder, name = posixpath.split(node.path)
        if name == OPAQUE:
            _remove(nodes, folder, itself=False)
        elif name.startswith(WHITEOUT):
            _remove(nodes, posixpath.join(folder, name[len(WHITEOUT) :]), itself=True)
        elif node.path:
            upper[node.path] = _linked(node, upper, nodes) if node.member.islnk() else node
    for path, node in upper.items():
        below = nodes.get(path)
        if below is not None and below.member.isdir() and not node.member.isdir():
            _remove(nodes, path, itself=True)
        nodes[path] = node


def _check_parent(path: str, nodes: Mapping[str, TreeNode]) -> None:
    """Raise `StepFailed` if the nearest known parent of a path is not a folder.

    `tar` follows a link there, and writes to a path that the tree digest would not see.
    """
    parent = posixpath.dirname(path)
    while parent and parent not in nodes:
        parent = posixpath.dirname(parent)
    if parent and not nodes[parent].member.isdir():
        raise StepFailed(f"/{path}: its parent /{parent} is not a folder")


def _linked(
    link: TreeNode, upper: Mapping[str, TreeNode], lower: Mapping[str, TreeNode]
) -> TreeNode:
    """Return the node that a hard link names, in this layer or below, with the link's path."""
    target = clean(link.member.linkname)
    node = upper.get(target) or lower.get(target)
    if node is None:
        raise StepFailed(f"/{link.path}: a hard link to /{target}, which is missing")
    return dataclasses.replace(node, path=link.path)


def _remove(nodes: dict[str, TreeNode], path: str, *, itself: bool) -> None:
    """Remove the nodes below a path; with `itself`, also the path's own."""
    node = nodes.pop(path, None) if itself else nodes.get(path)
    if node and not node.member.isdir():
        return
    below = f"{path}/" if path else ""
    for known in [name for name in nodes if name.startswith(below)]:
        del nodes[known]
