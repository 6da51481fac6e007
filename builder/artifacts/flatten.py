"""The layers of an OCI image laid over each other: one tree, read in place.

https://github.com/opencontainers/image-spec/blob/v1.1.0/layer.md: an entry of an upper layer
replaces that of a lower one, `.wh.NAME` removes NAME, `.wh..wh..opq` hides what lower layers have
in its folder.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import posixpath
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from builder.artifacts.oci import Layout, check_blob
from builder.artifacts.tree import Entry, clean, entry_of_special
from builder.digests import sha256_of
from builder.errors import StepFailed

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One path of the flattened tree. A regular file's content lies in `source` at `offset`.

    Nodes with the same source and offset are hard links to each other.
    """

    path: str
    member: tarfile.TarInfo
    source: Path | None = None
    offset: int = 0
    size: int = 0

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


@contextlib.contextmanager
def flattened(layout: Layout, *, scratch: Path) -> Iterator[Mapping[str, Node]]:
    """The nodes of an image by path, sorted; their contents can be read while this is open.

    Each layer is checked against its digest. Compressed ones are unpacked
    below `scratch`, which must have room for them.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="layers-") as folder:
        nodes: dict[str, Node] = {}
        for number, blob in enumerate(layout.layers):
            check_blob(blob)
            _lay(_plain(blob, Path(folder) / f"{number}.tar"), nodes)
        yield dict(sorted(nodes.items()))


def entries(nodes: Mapping[str, Node]) -> Iterator[Entry]:
    """The nodes as entries of the tree digest; hard links are hashed once."""
    known: dict[tuple[Path, int], str] = {}
    for path, node in nodes.items():
        if node.source is None:
            yield entry_of_special(node.member, path)
            continue
        place = (node.source, node.offset)
        if place not in known:
            with node.open() as data:
                known[place] = sha256_of(data)
        mode = stat.S_IMODE(node.member.mode)
        yield Entry(path=path, kind="file", mode=mode, size=node.size, content=known[place])


def _plain(blob: Path, target: Path) -> Path:
    with blob.open("rb") as file:
        if file.read(2) != _GZIP_MAGIC:
            return blob
    with gzip.open(blob) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    return target


def _lay(layer: Path, nodes: dict[str, Node]) -> None:
    """Lay one layer over the nodes of those below it."""
    upper: dict[str, Node] = {}
    with tarfile.open(layer, "r:") as archive:
        for member in archive:
            path = clean(member.name)
            folder, name = posixpath.split(path)
            if name == _OPAQUE:
                _remove(nodes, folder, itself=False)
            elif name.startswith(_WHITEOUT):
                _remove(nodes, posixpath.join(folder, name[len(_WHITEOUT) :]), itself=True)
            elif path:
                upper[path] = _node(layer, member, path, upper, nodes)
    for path, node in upper.items():
        below = nodes.get(path)
        if below is not None and below.member.isdir() and not node.member.isdir():
            _remove(nodes, path, itself=True)
        nodes[path] = node


def _node(
    layer: Path,
    member: tarfile.TarInfo,
    path: str,
    upper: Mapping[str, Node],
    lower: Mapping[str, Node],
) -> Node:
    if member.islnk():
        target = clean(member.linkname)
        linked = upper.get(target) or lower.get(target)
        if linked is None:
            raise StepFailed(f"/{path}: a hard link to /{target}, which is not there")
        return Node(
            path=path,
            member=linked.member,
            source=linked.source,
            offset=linked.offset,
            size=linked.size,
        )
    if member.isreg():
        return Node(
            path=path, member=member, source=layer, offset=member.offset_data, size=member.size
        )
    return Node(path=path, member=member)


def _remove(nodes: dict[str, Node], path: str, *, itself: bool) -> None:
    below = f"{path}/" if path else ""
    for known in [one for one in nodes if one.startswith(below) or (itself and one == path)]:
        del nodes[known]
