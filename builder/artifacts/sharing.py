"""Layers that images of one run have in common: written once, and copied into the next layout."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.artifacts.gzips import Place
from builder.artifacts.oci import Layer, blob_path

LIMIT = 2 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A layer as it was written: what it is, and where its large files' gzipped parts lie.

    `places` has them by the offset of the file's content in the plain blob.
    """

    layer: Layer
    places: Mapping[int, tuple[Place, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedLayers:
    """The layers used last, in a folder of this run's own; safe for threads.

    A key says everything that a layer is written from. No more than `limit` bytes of blobs are
    kept: what was not used for longest goes first, and a layer that is larger is not kept.

    Layouts of images are handed out while the run goes on, and what is changed in one must not
    change another: packed blobs are copies. Plain ones, which stay in this run's folders, are links
    where the file system has them.
    """

    folder: Path
    limit: int = LIMIT
    _written: dict[str, Written] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, key: str, *, target: Path, plain: Path) -> Written | None:
        """Put a layer that was written before into two layouts; None if there is none."""
        with self._lock:
            found = self._written.get(key)
            if found is None:
                return None
            layer, held = found.layer, self.folder / key
            self._written[key] = self._written.pop(key)  # used last
            shutil.copyfile(held / "packed", blob_path(target, layer.digest))
            _link(held / "plain", blob_path(plain, layer.diff_id))
            return found

    def keep(self, key: str, written: Written, *, target: Path, plain: Path) -> None:
        """Keep a layer that two layouts have."""
        packed = blob_path(target, written.layer.digest)
        unpacked = blob_path(plain, written.layer.diff_id)
        size = packed.stat().st_size + unpacked.stat().st_size
        with self._lock:
            if key in self._written or size > self.limit:
                return
            while self._written and sum(map(self._size, self._written)) + size > self.limit:
                oldest = next(iter(self._written))
                del self._written[oldest]
                shutil.rmtree(self.folder / oldest)
            held = self.folder / key
            held.mkdir(parents=True)
            shutil.copyfile(packed, held / "packed")
            _link(unpacked, held / "plain")
            self._written[key] = written

    def _size(self, key: str) -> int:
        held = self.folder / key
        return sum((held / name).stat().st_size for name in ("packed", "plain"))


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


@contextlib.contextmanager
def shared_layers(work: Path) -> Iterator[SharedLayers]:
    """The layers that images of a run have in common, below the folder of half-made things."""
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="layers-", dir=work) as folder:
        yield SharedLayers(folder=Path(folder))
