"""Rewrite an engine's export as an OCI layout that two builds make byte for byte the same.

Layers are rewritten: sorted, with only what counts (`settled`) and only the changes to the layers
below (`changes_of`). They are written gzipped, and plain for the formats that are made from them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from builder.artifacts.flatten import TreeNode, lay
from builder.artifacts.layers import changes_of
from builder.artifacts.manifests import size_of
from builder.artifacts.oci import (
    LayerBlob,
    Layout,
    blob_path,
    finish_layout,
    is_packed,
    opened_layer,
    plain_layers,
    read_layout,
    start_layout,
)
from builder.artifacts.tars import Gzip, GzippedTar, PartPlace, threads
from builder.model.contract import LABEL
from builder.model.digests import HashedWriter
from builder.model.errors import StepFailed
from builder.model.exact_json import part
from builder.system.files import link_or_copy, temporary_folder
from builder.system.home import NATIVE_LABEL

ANNOTATIONS = ("org.opencontainers.image.", LABEL)  # labels that are annotations, too
_CHUNK = 1 << 20
_NATIVE = f" LABEL {NATIVE_LABEL}="
_OF_BUILD = frozenset(["io.buildah.version", NATIVE_LABEL])
_CONFIG = ("architecture", "author", "os", "os.version", "variant")
_CONTAINER = (
    *("Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "Labels", "OnBuild", "Shell"),
    *("StopSignal", "User", "Volumes", "WorkingDir"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainLayout:
    """A layout whose layers are plain tars.

    `parts` has the gzipped parts of large files, by the blob and the offset of the content in
    `layout`: the digest of the blob in the gzipped layout of the image, and the parts' places.
    """

    layout: Layout
    parts: Mapping[tuple[Path, int], tuple[str, Sequence[PartPlace]]] = field(default_factory=dict)


def repack(
    exported: Path,
    target: Path,
    *,
    plain: Path,
    epoch: int,
    shared: SharedLayers | None = None,
    notes: Mapping[str, str] | None = None,
) -> PlainLayout:
    """Write the OCI layout `target`, and `plain`, a layout with the same layers uncompressed.

    `exported` is a folder in the format `dir:` of containers-transports(5), and is removed. Times
    in the layouts are at most `epoch`. Layers in `shared` are not written again. `notes` are
    annotations in addition to those from labels.
    """
    config, sources = _exported(exported)
    for folder in (target, plain):
        start_layout(folder)
    layers: list[LayerBlob] = []
    nodes: dict[str, TreeNode] = {}
    key = hashlib.sha256(str(epoch).encode()).hexdigest()  # of all inputs of a layer
    with threads() as pool:
        for number, source in enumerate(sources):
            key = hashlib.sha256(f"{key} {source.name}".encode()).hexdigest()
            layer = shared.take(key, target=target, plain=plain) if shared else None
            if layer is None:
                layer = _write_layer(source, nodes, target, plain, pool, epoch, lowest=not layers)
                if shared:
                    shared.retain(key, layer, target=target, plain=plain)
            lay(blob_path(plain, layer.diff_id), nodes)
            layers.append(layer)
            if source not in sources[number + 1 :]:  # two steps may have the same blob
                source.unlink()
    shutil.rmtree(exported)
    diff_ids = [layer.diff_id for layer in layers]
    settled_config = _config(config, diff_ids, epoch)
    labels = part(settled_config, "config", "Labels") or {}
    annotations = {name: text for name, text in labels.items() if name.startswith(ANNOTATIONS)}
    annotations |= notes or {}
    finish_layout(target, settled_config, layers, annotations)
    finish_layout(plain, settled_config, plain_layers(plain, diff_ids), annotations)
    parts = {
        (blob_path(plain, layer.diff_id), offset): (layer.digest, places)
        for layer in layers
        for offset, places in layer.places.items()
    }
    return PlainLayout(layout=read_layout(plain), parts=parts)


def unpack(layout: Layout, plain: Path) -> PlainLayout:
    """Return the plain layout of a packed image; write it if it is not complete."""
    with contextlib.suppress(StepFailed):
        existing = read_layout(plain)
        if existing.config == layout.config and all(blob.is_file() for blob in existing.layers):
            return PlainLayout(layout=existing)
    start_layout(plain)
    for blob, diff_id in zip(layout.layers, layout.diff_ids, strict=True):
        with opened_layer(blob, diff_id) as source, (plain / "layer").open("wb") as sink:
            shutil.copyfileobj(source, sink, _CHUNK)
        (plain / "layer").rename(blob_path(plain, diff_id))
    finish_layout(plain, layout.config, plain_layers(plain, layout.diff_ids))
    return PlainLayout(layout=read_layout(plain))


def _exported(folder: Path) -> tuple[dict[str, object], list[Path]]:
    """Return the config and the layers' blobs of an exported image."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        config = json.loads((folder / _file_name(manifest["config"])).read_text())
        return config, [folder / _file_name(one) for one in manifest["layers"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepFailed(f"{folder}: the engine exported an incomplete image ({error})") from error


def _file_name(descriptor: Mapping[str, object]) -> str:
    return str(descriptor["digest"]).partition(":")[2]


def _write_layer(
    blob: Path,
    below: Mapping[str, TreeNode],
    target: Path,
    plain: Path,
    pool: ThreadPoolExecutor,
    epoch: int,
    *,
    lowest: bool,
) -> LayerBlob:
    """Write the changes of an exported blob to two layouts, gzipped and plain."""
    source, packed, unpacked = blob, target / "layer", plain / "layer"
    if is_packed(blob):
        source = blob.with_suffix(".tar")
        with opened_layer(blob) as tar_stream, source.open("wb") as sink:
            shutil.copyfileobj(tar_stream, sink, _CHUNK)
    with packed.open("wb") as sink, unpacked.open("wb") as plain_sink:
        gzip, hashing = Gzip(sink, pool), HashedWriter(plain_sink)
        tar = GzippedTar(gzip, hashing)
        for change in changes_of(source, below, epoch=epoch, lowest=lowest):
            if change.member.isreg():
                with change.open() as content:
                    tar.add(change.member, content)
            else:
                tar.add(change.member)
        tar.close()
    digest = f"sha256:{gzip.digest}"
    packed.rename(blob_path(target, digest))
    unpacked.rename(blob_path(plain, hashing.digest))
    if source != blob:
        source.unlink()
    return LayerBlob(diff_id=hashing.digest, digest=digest, size=gzip.size, places=gzip.places)


_COPIED = re.compile(r"(#\(nop\) (?:COPY|ADD) [a-z]+):[0-9a-f]{64}(?= )")


def _config(config: Mapping[str, object], diff_ids: Sequence[str], epoch: int) -> dict[str, object]:
    """Return an image's config without data of the engine and the date of the build."""
    created = dt.datetime.fromtimestamp(epoch, tz=dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    container = part(config, "config")
    settings = {name: value for name in _CONTAINER if (value := part(container, name))}
    if labels := settings.get("Labels"):
        settings["Labels"] = {name: text for name, text in labels.items() if name not in _OF_BUILD}
    return {
        **{name: config[name] for name in _CONFIG if config.get(name)},
        "created": created,
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": [
            {"created": created, **_step(step)}
            for step in part(config, "history") or []
            # Left out: the label with the native tools of the steps after it.
            if not (step.get("empty_layer") and _NATIVE in str(step.get("created_by")))
        ],
    }


def _step(step: Mapping[str, object]) -> dict[str, object]:
    """Return a step of an image's history without what differs between builds.

    Comments name images in the engine's storage. Buildah also writes a digest of copied files
    that covers their times.
    """
    about = {name: step[name] for name in ("author", "created_by", "empty_layer") if step.get(name)}
    if command := about.get("created_by"):
        about["created_by"] = _COPIED.sub(r"\1", str(command))
    return about


LIMIT = 2 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedLayers:
    """The most recently used layers, in a folder of this run's own; safe for threads.

    A key covers all inputs of a layer. At most `limit` bytes of blobs are retained: the least
    recently used layer goes first, and a layer that is larger is not retained.

    Users receive layouts while the run continues, and a change in one must not change another:
    packed blobs are copies. Plain blobs, which stay in this run's folders, are links if the file
    system supports them.
    """

    folder: Path
    limit: int = LIMIT
    _layers: dict[str, LayerBlob] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, key: str, *, target: Path, plain: Path) -> LayerBlob | None:
        """Put a retained layer into two layouts, and return it; None if there is none."""
        with self._lock:
            layer = self._layers.pop(key, None)
            if layer is not None:
                self._layers[key] = layer  # used last
                shutil.copyfile(self.folder / key / "packed", blob_path(target, layer.digest))
                blob_path(plain, layer.diff_id).unlink(missing_ok=True)  # two steps may be alike
                link_or_copy(self.folder / key / "plain", blob_path(plain, layer.diff_id))
            return layer

    def retain(self, key: str, layer: LayerBlob, *, target: Path, plain: Path) -> None:
        """Retain a layer that is in two layouts."""
        packed, unpacked = blob_path(target, layer.digest), blob_path(plain, layer.diff_id)
        size = packed.stat().st_size + unpacked.stat().st_size
        with self._lock:
            if key in self._layers or size > self.limit:
                return
            while self._layers and size_of(self.folder) + size > self.limit:
                oldest = next(iter(self._layers))
                del self._layers[oldest]
                shutil.rmtree(self.folder / oldest)
            (self.folder / key).mkdir(parents=True)
            shutil.copyfile(packed, self.folder / key / "packed")
            link_or_copy(unpacked, self.folder / key / "plain")
            self._layers[key] = layer


@contextlib.contextmanager
def shared_layers(work: Path) -> Iterator[SharedLayers]:
    """Yield the store of layers that images of a run share, in a temporary folder of `work`."""
    with temporary_folder(work, "layers-") as folder:
        yield SharedLayers(folder=folder)
