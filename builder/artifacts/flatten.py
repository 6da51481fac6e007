"""The layers of an OCI image laid over each other: one tree, read in place.

https://github.com/opencontainers/image-spec/blob/v1.1.0/layer.md: an entry of an upper layer
replaces that of a lower one, `.wh.NAME` removes NAME, `.wh..wh..opq` hides what lower layers have
in its folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import posixpath
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from builder.artifacts.oci import Layout, opened_layer
from builder.artifacts.tars import users_attributes
from builder.artifacts.tree import Entry, clean, entry_of_special, hashed, owner_of
from builder.model.digests import sha256_of
from builder.model.errors import StepFailed

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One path of the flattened tree. A regular file's content lies in `source` at `offset`.

    Nodes with the same source and offset are hard links to each other. Without a source, the
    content was read before, and `content` is its SHA-256.
    """

    path: str
    member: tarfile.TarInfo
    source: Path | None = None
    offset: int = 0
    size: int = 0
    content: str = ""

    @property
    def is_file(self) -> bool:
        """True if it is a regular file."""
        return self.member.isreg()

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The content of a regular file, as a stream of exactly `size` bytes."""
        assert self.source is not None
        with self.source.open("rb") as file:
            file.seek(self.offset)
            yield cast("IO[bytes]", _Window(file, self.size))

    def read(self) -> bytes:
        """The whole content of a regular file."""
        with self.open() as data:
            return data.read()


class _Window(io.RawIOBase):
    """A stream over the next `size` bytes of a file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        super().__init__()
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        self._left -= len(data)
        return data


def flattened(layout: Layout) -> dict[str, Node]:
    """The nodes of an image by path, sorted; its layers are plain tars, and stay where they are.

    Layers are not checked against their digests here: `unpack` and `repack` made them.
    """
    nodes: dict[str, Node] = {}
    for blob in layout.layers:
        lay(blob, nodes)
    return dict(sorted(nodes.items()))


def lay(blob: Path, nodes: dict[str, Node]) -> None:
    """Lay a layer, a plain tar, over the nodes of those below it."""
    with blob.open("rb") as file:
        _lay(_placed(blob, file), nodes)


def entries(nodes: Mapping[str, Node]) -> Iterator[Entry]:
    """The nodes as entries of the tree digest; hard links are hashed once."""
    known: dict[tuple[Path, int], str] = {}
    for path, node in nodes.items():
        if not node.is_file:
            yield entry_of_special(node.member, path)
            continue
        content = node.content
        if node.source is not None:
            place = (node.source, node.offset)
            if place not in known:
                with node.open() as data:
                    known[place] = sha256_of(data)
            content = known[place]
        yield Entry(
            path=path,
            kind="file",
            mode=stat.S_IMODE(node.member.mode),
            size=node.size,
            content=content,
            attributes=users_attributes(node.member),
            owner=owner_of(node.member),
        )


def entries_of_layout(layout: Layout, kept: dict[str, bytes] | None = None) -> Iterator[Entry]:
    """The entries of an image, read once from its blobs, each checked against its digests.

    `kept` is given the contents of the files that describe an image (`tree.describes`).
    """
    nodes: dict[str, Node] = {}
    for blob, diff_id in zip(layout.layers, layout.diff_ids, strict=False):
        with opened_layer(blob, diff_id) as stream:
            _lay(_hashed(stream, kept), nodes)
    return entries(nodes)


Member = tuple[tarfile.TarInfo, str, Node]


def _placed(layer: Path, file: IO[bytes]) -> Iterator[Member]:
    """The members of a plain tar, with their paths; files know where their content lies."""
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            path = clean(member.name)
            source = layer if member.isreg() else None
            offset, size = member.offset_data, member.size
            yield (
                member,
                path,
                Node(path=path, member=member, source=source, offset=offset, size=size),
            )


def _hashed(stream: IO[bytes], kept: dict[str, bytes] | None) -> Iterator[Member]:
    """The members of a tar that is read once, with their paths; files know their SHA-256."""
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as archive:
        for member in archive:
            path = clean(member.name)
            content = ""
            if member.isreg():
                data = archive.extractfile(member)
                assert data is not None
                content = hashed(data, path, member.size, kept)
            yield member, path, Node(path=path, member=member, size=member.size, content=content)


def _lay(members: Iterable[Member], nodes: dict[str, Node]) -> None:
    """Lay one layer over the nodes of those below it."""
    upper: dict[str, Node] = {}
    for member, path, node in members:
        folder, name = posixpath.split(path)
        if name == OPAQUE:
            _remove(nodes, folder, itself=False)
        elif name.startswith(WHITEOUT):
            _remove(nodes, posixpath.join(folder, name[len(WHITEOUT) :]), itself=True)
        elif path:
            is_link, target = member.islnk(), clean(member.linkname)
            upper[path] = _linked(path, target, upper, nodes) if is_link else node
    for path, node in upper.items():
        below = nodes.get(path)
        if below is not None and below.member.isdir() and not node.member.isdir():
            _remove(nodes, path, itself=True)
        nodes[path] = node


def _linked(path: str, target: str, upper: Mapping[str, Node], lower: Mapping[str, Node]) -> Node:
    """Another name for a node of this layer, or of one below."""
    linked = upper.get(target) or lower.get(target)
    if linked is None:
        raise StepFailed(f"/{path}: a hard link to /{target}, which is not there")
    return dataclasses.replace(linked, path=path)


def _remove(nodes: dict[str, Node], path: str, *, itself: bool) -> None:
    below = f"{path}/" if path else ""
    for known in [one for one in nodes if one.startswith(below) or (itself and one == path)]:
        del nodes[known]
