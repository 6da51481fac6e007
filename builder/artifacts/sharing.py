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
    """The layers written last, in a folder of this run's own; safe for threads.

    A key says everything that a layer is written from. Blobs are links to those of the layouts
    they were written for. No more than `limit` bytes of them are kept: the oldest go first.
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
            # Layouts of images are handed out: what is changed in one must not change another.
            shutil.copyfile(held / "packed", blob_path(target, layer.digest))
            _link(held / "plain", blob_path(plain, layer.diff_id))
            return found

    def keep(self, key: str, written: Written, *, target: Path, plain: Path) -> None:
        """Keep a layer that two layouts have."""
        layer = written.layer
        with self._lock:
            held = self.folder / key
            shutil.rmtree(held, ignore_errors=True)
            held.mkdir(parents=True)
            _link(blob_path(target, layer.digest), held / "packed")
            _link(blob_path(plain, layer.diff_id), held / "plain")
            self._written.pop(key, None)
            self._written[key] = written
            while self._size() > self.limit:
                oldest = next(iter(self._written))
                del self._written[oldest]
                shutil.rmtree(self.folder / oldest)

    def _size(self) -> int:
        files = (self.folder / key / name for key in self._written for name in ("packed", "plain"))
        return sum(file.stat().st_size for file in files)


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    os.link(source, target)


@contextlib.contextmanager
def shared_layers(work: Path) -> Iterator[SharedLayers]:
    """The layers that images of a run have in common, below the folder of half-made things."""
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="layers-", dir=work) as folder:
        yield SharedLayers(folder=Path(folder))
