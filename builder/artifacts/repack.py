"""From what an engine exports to an OCI layout that two builds agree on, byte for byte.

Layers are written anew: sorted, with what counts alone (`settled`) and only what each changes of
those below it (`changes`); plain for what is made of them next, and gzipped.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from builder.artifacts.changes import changes_of
from builder.artifacts.flatten import Node, lay
from builder.artifacts.oci import (
    Layer,
    Layout,
    blob_path,
    finish_layout,
    is_packed,
    opened_layer,
    read_layout,
    start_layout,
)
from builder.artifacts.tars import Gzip, GzippedTar, Place, threads
from builder.model.contract import LABEL
from builder.model.digests import HashedWriter
from builder.model.errors import StepFailed
from builder.model.exact_json import part
from builder.system.home import NATIVE_LABEL

ANNOTATIONS = ("org.opencontainers.image.", LABEL)  # labels that are the manifest's, too
_NO_NOTES: Mapping[str, str] = MappingProxyType({})
_OF_BUILD = frozenset(["io.buildah.version", NATIVE_LABEL])
_CONFIG = ("architecture", "author", "os", "os.version", "variant")
_CONTAINER = (
    *("Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "Labels", "OnBuild", "Shell"),
    *("StopSignal", "User", "Volumes", "WorkingDir"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Where a large file lies in a layer's blob, gzipped."""

    blob: str
    places: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plain:
    """A layout whose layers are plain tars, and what is known of it.

    `kept` has large files by the blob and the offset of their content in `layout`: their gzipped
    parts in another layout, of the same image.
    """

    layout: Layout
    kept: Mapping[tuple[Path, int], Kept] = field(default_factory=dict)


def repack(
    exported: Path,
    target: Path,
    *,
    plain: Path,
    epoch: int,
    shared: SharedLayers | None = None,
    notes: Mapping[str, str] = _NO_NOTES,
) -> Plain:
    """Write the OCI layout `target`, and beside it `plain`, with layers that are not compressed.

    `exported` is a folder as containers-transports(5) has it for `dir:`, and is used up. No time
    in the layouts is later than `epoch`. Layers that are in `shared` are not written again. `notes`
    are annotations beside those that the labels are.
    """
    config, sources = _exported(exported)
    for folder in (target, plain):
        start_layout(folder)
    layers: list[Layer] = []
    kept: dict[tuple[Path, int], Kept] = {}
    with threads() as pool:
        writing = _Writing(target=target, plain=plain, pool=pool, epoch=epoch, shared=shared)
        key = hashlib.sha256(str(epoch).encode()).hexdigest()
        for number, source in enumerate(sources):
            key = hashlib.sha256(f"{key} {source.name}".encode()).hexdigest()
            written = writing.layer(source, key=key, lowest=not layers)
            layers.append(written.layer)
            blob = blob_path(plain, written.layer.diff_id)
            for offset, places in written.places.items():
                kept[(blob, offset)] = Kept(blob=written.layer.digest, places=places)
            if source not in sources[number + 1 :]:  # two steps may have changed the same
                source.unlink()
    shutil.rmtree(exported)
    settled_config = _config(config, [one.diff_id for one in layers], epoch)
    labels = part(settled_config, "config", "Labels") or {}
    about = {name: text for name, text in labels.items() if name.startswith(ANNOTATIONS)}
    about |= notes
    finish_layout(target, settled_config, layers, about)
    finish_layout(plain, settled_config, [_as_plain(plain, one) for one in layers], about)
    return Plain(layout=read_layout(plain), kept=kept)


def unpack(layout: Layout, plain: Path) -> Plain:
    """The plain layout of an image that was packed before; made if it is not there whole."""
    with contextlib.suppress(StepFailed):
        found = read_layout(plain)
        if found.config == layout.config:
            return Plain(layout=found)
    start_layout(plain)
    for blob, diff_id in zip(layout.layers, layout.diff_ids, strict=True):
        digest = hashlib.sha256()
        with opened_layer(blob) as source, (plain / "layer").open("wb") as sink:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                sink.write(chunk)
        if diff_id != f"sha256:{digest.hexdigest()}":
            raise StepFailed(f"{blob}: this layer is not the {diff_id} of the image's config")
        (plain / "layer").rename(blob_path(plain, diff_id))
    layers = [_as_plain(plain, Layer(diff_id=one, digest=one, size=0)) for one in layout.diff_ids]
    finish_layout(plain, layout.config, layers)
    return Plain(layout=read_layout(plain))


def _exported(folder: Path) -> tuple[dict[str, object], list[Path]]:
    """The config and the layers' blobs of an exported image."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        config = json.loads((folder / _file_name(manifest["config"])).read_text())
        return config, [folder / _file_name(one) for one in manifest["layers"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepFailed(f"{folder}: the engine exported no whole image ({error})") from error


def _file_name(descriptor: Mapping[str, object]) -> str:
    return str(descriptor["digest"]).partition(":")[2]


def _unpacked(blob: Path, target: Path) -> Path:
    if not is_packed(blob):
        return blob
    with opened_layer(blob) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    return target


def _as_plain(plain: Path, layer: Layer) -> Layer:
    size = blob_path(plain, layer.diff_id).stat().st_size
    return Layer(diff_id=layer.diff_id, digest=layer.diff_id, size=size)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Writing:
    """Layers that are written to two layouts. `nodes` are the tree of those that are there."""

    target: Path
    plain: Path
    pool: ThreadPoolExecutor
    epoch: int
    shared: SharedLayers | None
    nodes: dict[str, Node] = field(default_factory=dict)

    def layer(self, source: Path, *, key: str, lowest: bool) -> Written:
        """Write the layer of an exported blob; `key` says what it and those below are made of."""
        written = (
            self.shared.take(key, target=self.target, plain=self.plain) if self.shared else None
        )
        if written is None:
            written = self._layer(source, lowest=lowest)
            if self.shared:
                self.shared.keep(key, written, target=self.target, plain=self.plain)
        lay(blob_path(self.plain, written.layer.diff_id), self.nodes)
        return written

    def _layer(self, blob: Path, *, lowest: bool) -> Written:
        source = _unpacked(blob, blob.with_suffix(".tar"))
        packed, plain = self.target / "layer", self.plain / "layer"
        with packed.open("wb") as sink, plain.open("wb") as plain_sink:
            gzip, hashing = Gzip(sink, self.pool), HashedWriter(plain_sink)
            tar = GzippedTar(gzip, hashing)
            for change in changes_of(source, self.nodes, epoch=self.epoch, lowest=lowest):
                if change.member.isreg():
                    with change.open() as content:
                        tar.add(change.member, content)
                else:
                    tar.add(change.member)
            tar.close()
        layer = Layer(diff_id=hashing.digest, digest=f"sha256:{gzip.digest}", size=gzip.size)
        packed.rename(blob_path(self.target, layer.digest))
        plain.rename(blob_path(self.plain, layer.diff_id))
        if source != blob:
            source.unlink()
        places = {_offset(one): tuple(some) for one, some in gzip.places.items()}
        return Written(layer=layer, places=places)


def _offset(place: Hashable) -> int:
    assert isinstance(place, int)
    return place


_COPIED = re.compile(r"(#\(nop\) (?:COPY|ADD) [a-z]+):[0-9a-f]{64}(?= )")


def _config(config: Mapping[str, object], diff_ids: Sequence[str], epoch: int) -> dict[str, object]:
    """An image's config without what the engine knows of itself and of the day."""
    created = dt.datetime.fromtimestamp(epoch, tz=dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    container = part(config, "config")
    kept = {name: value for name in _CONTAINER if (value := part(container, name))}
    if labels := kept.get("Labels"):
        kept["Labels"] = {name: text for name, text in labels.items() if name not in _OF_BUILD}
    return {
        **{name: config[name] for name in _CONFIG if config.get(name)},
        "created": created,
        "config": kept,
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": [
            _step(one, created) for one in part(config, "history") or [] if not _of_build(one)
        ],
    }


def _of_build(step: Mapping[str, object]) -> bool:
    """Return whether a step says only which native tools the steps after it were lent."""
    return bool(step.get("empty_layer")) and f" LABEL {NATIVE_LABEL}=" in str(
        step.get("created_by")
    )


def _step(step: Mapping[str, object], created: str) -> dict[str, object]:
    """A step of an image's history; comments name images of the engine's own storage.

    Buildah also writes down the digest of what it copied: with the times that files had then.
    """
    kept = {name: step[name] for name in ("author", "created_by", "empty_layer") if step.get(name)}
    if by := kept.get("created_by"):
        kept["created_by"] = _COPIED.sub(r"\1", str(by))
    return {"created": created, **kept}


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
