"""OCI image layouts: written for base images, read for everything else.

https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from builder.artifacts.tars import Gzip, PartPlace, threads
from builder.model.digests import HashedReader, canonical_json, digest_of
from builder.model.errors import StepFailed
from builder.model.exact_json import member, parsed, part
from builder.system.compression import ZSTD_MAGIC, StreamInflater
from builder.system.files import read_regular

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
PLAIN_LAYER = "application/vnd.oci.image.layer.v1.tar"
ZSTD_LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"
GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The one image of an OCI layout folder. `layers` are blobs, the lowest first.

    `descriptor` is that of the image's `manifest` in the index.
    """

    path: Path
    digest: str
    config: Mapping[str, Any]
    layers: tuple[Path, ...]
    manifest: Mapping[str, object] = field(default_factory=dict)
    descriptor: Mapping[str, object] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the image sets."""
        pairs = part(self.config, "config", "Env") or []
        return dict(pair.partition("=")[::2] for pair in pairs)

    @property
    def directory(self) -> str:
        """The working directory of its programs."""
        return str(part(self.config, "config", "WorkingDir") or "/")

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """The digests of the layers' tars, one a layer.

        Raises `StepFailed` if the configuration has another number of them.
        """
        diff_ids = part(self.config, "rootfs", "diff_ids") or []
        if len(diff_ids) != len(self.layers):
            raise StepFailed(
                f"{self.path}: {len(self.layers)} layers, but {len(diff_ids)} diff_ids"
            )
        return tuple(map(str, diff_ids))

    @property
    def architecture(self) -> str:
        """The architecture, spelt as OCI does (amd64)."""
        return str(self.config.get("architecture", ""))


def read_layout(path: Path) -> Layout:
    """Read a layout with one image; check its manifest and config against their digests.

    Layers are checked when they are read (`flatten`).
    """
    try:
        index = parsed(read_regular(path / "index.json", follow=True))
        descriptors = [d for d in index["manifests"] if d.get("mediaType") == MANIFEST]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StepFailed(f"{path}: not an OCI image layout ({error})") from error
    if len(descriptors) != 1:
        raise StepFailed(f"{path}: {len(descriptors)} images in the OCI layout, expected 1")
    digest = descriptors[0]["digest"]
    manifest = _document(path, digest)
    return Layout(
        path=path,
        digest=digest,
        config=_document(path, manifest["config"]["digest"]),
        layers=tuple(blob_path(path, layer["digest"]) for layer in manifest["layers"]),
        manifest=manifest,
        descriptor=descriptors[0],
    )


def _document(layout: Path, digest: str) -> Any:
    try:
        data = read_regular(blob_path(layout, digest), follow=True)
    except OSError as error:
        raise StepFailed(f"{layout}: not an OCI image layout ({error})") from error
    if (actual := digest_of(data)) != digest:
        raise StepFailed(f"{layout}: blob {digest} has the digest {actual}")
    try:
        return parsed(data)
    except ValueError as error:
        raise StepFailed(f"{layout}: {digest} cannot be read as JSON ({error})") from error


def blob_path(layout: Path, digest: str) -> Path:
    """Return where a layout keeps a blob."""
    algorithm, _, value = digest.partition(":")
    return layout / "blobs" / algorithm / value


@contextmanager
def opened_layer(blob: Path, diff_id: str = "") -> Iterator[IO[bytes]]:
    """Open a layer's tar, from a blob that is compressed or not; it is read to its end.

    Raises `StepFailed` at the end if the blob's SHA-256 is not its name or, with a `diff_id`, if
    the tar has another digest.
    """
    with blob.open("rb") as file:
        packed = HashedReader(file)
        unpacked = _Unpacked(blob, packed) if is_packed(blob) else packed
        plain = HashedReader(cast("IO[bytes]", unpacked))
        yield cast("IO[bytes]", plain)
        for stream in (plain, packed):
            while stream.read(_CHUNK):
                pass
    if packed.digest != f"sha256:{blob.name}":
        raise StepFailed(f"{blob}: this blob has the digest {packed.digest}")
    if diff_id and plain.digest != diff_id:
        raise StepFailed(f"{blob}: this layer differs from {diff_id} in the config")


def is_packed(blob: Path) -> bool:
    """Return whether a layer's blob is compressed."""
    return packing_of(blob) != PLAIN_LAYER


def packing_of(blob: Path) -> str:
    """Return the media type of a layer, by the beginning of its blob."""
    with blob.open("rb") as file:
        begin = file.read(len(ZSTD_MAGIC))
    if begin.startswith(GZIP_MAGIC):
        return LAYER
    return ZSTD_LAYER if begin == ZSTD_MAGIC else PLAIN_LAYER


class _Unpacked(io.RawIOBase):
    """The plain bytes of a compressed layer."""

    def __init__(self, blob: Path, file: HashedReader) -> None:
        super().__init__()
        self._file, self._ready = file, bytearray()
        self._inflater = StreamInflater(zstd=packing_of(blob) == ZSTD_LAYER)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._ready) < size:
            packed = self._file.read(_CHUNK >> 2)
            if not packed and not self._inflater.eof:
                raise EOFError("the compressed data are truncated")
            if not packed:
                break
            self._ready += self._inflater.decompress(packed)
        size = len(self._ready) if size < 0 else size
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data


def write_archive(
    rootfs: Path, target: Path, *, architecture: str, environment: Mapping[str, str], name: str
) -> str:
    """Make an OCI archive (a tar of a layout) of one root file system tar; return its digest.

    The same tar gives the same bytes.
    """
    layout = target.with_suffix(".layout")
    start_layout(layout)
    with rootfs.open("rb") as file, (layout / "layer").open("wb") as sink, threads() as pool:
        plain, gzip = HashedReader(file), Gzip(sink, pool)
        while chunk := plain.read(_CHUNK):
            gzip.write(chunk)
        gzip.close()
    layer = LayerBlob(diff_id=plain.digest, digest=f"sha256:{gzip.digest}", size=gzip.size)
    (layout / "layer").rename(blob_path(layout, layer.digest))
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Env": [f"{key}={value}" for key, value in environment.items()],
            "Cmd": ["/bin/bash"],
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": f"mmdebstrap {name}"}],
    }
    digest = finish_layout(layout, config, [layer])
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(layout.rglob("*")):
            archive.add(path, path.relative_to(layout).as_posix(), recursive=False, filter=_plain)
    shutil.rmtree(layout)
    return digest


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBlob:
    """A layer's blob; `diff_id` is the digest of its tar, which is that of a plain blob, too.

    `places` has the gzipped parts of large files, by the offset of their content in the tar.
    """

    diff_id: str
    digest: str
    size: int
    places: Mapping[int, Sequence[PartPlace]] = field(default_factory=dict)

    @property
    def media_type(self) -> str:
        """Its type in an OCI manifest."""
        return PLAIN_LAYER if self.digest == self.diff_id else LAYER


def plain_layers(layout: Path, diff_ids: Iterable[str]) -> list[LayerBlob]:
    """Return layers of a layout that are plain tars."""
    return [
        LayerBlob(diff_id=digest, digest=digest, size=blob_path(layout, digest).stat().st_size)
        for digest in diff_ids
    ]


def start_layout(layout: Path) -> None:
    """Make an empty layout that only its owner can write to; remove its old content."""
    shutil.rmtree(layout, ignore_errors=True)
    (layout / "blobs/sha256").mkdir(parents=True)
    for folder in (layout, layout / "blobs", layout / "blobs/sha256"):
        folder.chmod(0o755)  # whatever the umask


def finish_layout(
    layout: Path,
    config: Mapping[str, object],
    layers: Sequence[LayerBlob],
    annotations: Mapping[str, str] | None = None,
) -> str:
    """Complete a folder with layers' blobs to a layout of one image; return the image's digest."""
    manifest: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _put(layout, config, CONFIG),
        "layers": [
            {"mediaType": one.media_type, "digest": one.digest, "size": one.size} for one in layers
        ],
    }
    if annotations:
        manifest["annotations"] = dict(annotations)
    descriptor = _put(layout, manifest, MANIFEST)
    descriptor["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    index = {"schemaVersion": 2, "manifests": [descriptor]}
    (layout / "index.json").write_bytes(canonical_json(index))
    return str(descriptor["digest"])


def _put(layout: Path, value: Mapping[str, object], media_type: str) -> dict[str, object]:
    data = canonical_json(value)
    digest = digest_of(data)
    blob_path(layout, digest).write_bytes(data)
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


_VERSION = "1.0.0"
_VARIANTS = {"arm64": "v8"}  # those of the platforms that images are made for


def layout_faults(path: Path, architecture: str) -> list[str]:
    """Return contradictions in a layout, and a platform other than `architecture` (amd64).

    Digests of layers are not compared here: `flatten` does that as it reads the layers.
    """
    layout = read_layout(path)
    try:
        return [
            *_wrong_platform(layout, architecture),
            *_wrong_blobs(layout),
            *_wrong_annotations(layout),
        ]
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        return [f"index, manifest or configuration is malformed ({error!r})"]


def _wrong_platform(layout: Layout, architecture: str) -> Iterator[str]:
    file = layout.path / "oci-layout"  # programs recognize a layout by it
    version = json.loads(file.read_text())["imageLayoutVersion"] if file.exists() else None
    if version != _VERSION:
        yield f"its file oci-layout says version {version}, expected {_VERSION}"
    expected = {"architecture": architecture, "os": "linux"}
    index = layout.descriptor.get("platform") or expected
    for where, platform in {"configuration": layout.config, "index": index}.items():
        for key, value in expected.items():
            if (actual := part(platform, key)) != value:
                yield f"its {where} is for the {key} {actual}, expected {value}"
        variant = part(platform, "variant")
        if variant not in {None, "", _VARIANTS.get(architecture, "")}:
            yield f"its {where} is for the variant {variant} of {architecture}"


def _wrong_blobs(layout: Layout) -> Iterator[str]:
    manifest = layout.manifest
    config, layers = member(manifest, "config"), member(manifest, "layers")
    for blob in [layout.descriptor, config, *layers]:
        size = blob_path(layout.path, str(blob["digest"])).stat().st_size
        if blob["size"] != size:
            yield f"blob {blob['digest']} has {size} bytes, but its descriptor says {blob['size']}"
    kind = manifest.get("mediaType", MANIFEST)
    if kind != MANIFEST or manifest["schemaVersion"] != 2:  # noqa: PLR2004
        yield f"its manifest is a {kind}, expected {MANIFEST}"
    if config["mediaType"] != CONFIG:
        yield f"its configuration is a {config['mediaType']}, expected {CONFIG}"
    for layer in layers:
        kind = packing_of(blob_path(layout.path, layer["digest"]))
        if layer["mediaType"] != kind:
            yield f"layer {layer['digest']} is {kind}, but its descriptor says {layer['mediaType']}"


def _wrong_annotations(layout: Layout) -> Iterator[str]:
    """Yield each annotation that differs from the label of the same name."""
    labels = labels_of(layout)
    for name, text in (part(layout.manifest, "annotations") or {}).items():
        if labels.get(name, text) != text:
            yield f"the annotation {name} is {text!r}, but the label is {labels[name]!r}"


def labels_of(layout: Layout) -> dict[str, str]:
    """Return the labels of an image."""
    return dict(part(layout.config, "config", "Labels") or {})
