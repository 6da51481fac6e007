"""OCI image layouts: written for base images, read for everything else.

https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from builder.digests import sha256_of_file
from builder.errors import StepFailed

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The one image of an OCI layout folder. `layers` are blobs, the lowest first."""

    path: Path
    digest: str
    config: Mapping[str, Any]
    layers: tuple[Path, ...]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the image sets."""
        pairs = self.config.get("config", {}).get("Env") or []
        return dict(pair.partition("=")[::2] for pair in pairs)

    @property
    def architecture(self) -> str:
        """The architecture, spelt as OCI does (amd64)."""
        return str(self.config.get("architecture", ""))


def read_layout(path: Path) -> Layout:
    """Open a layout with one image, each blob that is read checked against its digest.

    Layers are checked when they are read (`flatten`).
    """
    try:
        index = json.loads((path / "index.json").read_text())
        descriptors = [d for d in index["manifests"] if d.get("mediaType") == MANIFEST]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StepFailed(f"{path}: not an OCI image layout ({error})") from error
    if len(descriptors) != 1:
        raise StepFailed(f"{path}: {len(descriptors)} images in the OCI layout, expected 1")
    digest = descriptors[0]["digest"]
    manifest = json.loads(_blob(path, digest))
    return Layout(
        path=path,
        digest=digest,
        config=json.loads(_blob(path, manifest["config"]["digest"])),
        layers=tuple(blob_path(path, layer["digest"]) for layer in manifest["layers"]),
    )


def blob_path(layout: Path, digest: str) -> Path:
    """Where a layout keeps a blob."""
    algorithm, _, value = digest.partition(":")
    return layout / "blobs" / algorithm / value


def _blob(layout: Path, digest: str) -> bytes:
    try:
        data = blob_path(layout, digest).read_bytes()
    except OSError as error:
        raise StepFailed(f"{layout}: not an OCI image layout ({error})") from error
    found = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if found != digest:
        raise StepFailed(f"{layout}: blob {digest} holds {found}")
    return data


def check_blob(path: Path) -> None:
    """Raise `StepFailed` unless a blob holds what its name, a SHA-256, says."""
    found = sha256_of_file(path)
    if found != path.name:
        raise StepFailed(f"{path}: this blob holds sha256:{found}")


def write_archive(
    rootfs: Path, target: Path, *, architecture: str, environment: Mapping[str, str], name: str
) -> str:
    """Make an OCI archive (a tar of a layout) of one root file system tar; its digest.

    The same tar gives the same bytes.
    """
    layout = target.with_suffix(".layout")
    shutil.rmtree(layout, ignore_errors=True)
    (layout / "blobs/sha256").mkdir(parents=True)
    diff_id, layer_size, layer_digest = _write_layer(rootfs, layout)
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Env": [f"{key}={value}" for key, value in environment.items()],
            "Cmd": ["/bin/bash"],
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": f"mmdebstrap {name}"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _put(layout, config, CONFIG),
        "layers": [{"mediaType": LAYER, "digest": layer_digest, "size": layer_size}],
    }
    descriptor = _put(layout, manifest, MANIFEST)
    descriptor["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    index = {"schemaVersion": 2, "manifests": [descriptor]}
    (layout / "index.json").write_text(_json(index))
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    _archive(layout, target)
    shutil.rmtree(layout)
    return str(descriptor["digest"])


def _write_layer(rootfs: Path, layout: Path) -> tuple[str, int, str]:
    plain, packed = hashlib.sha256(), hashlib.sha256()
    partial = layout / "layer"
    with rootfs.open("rb") as source, partial.open("wb") as sink:
        hashing = _Hashing(sink, packed)
        with gzip.GzipFile(
            filename="", mode="wb", compresslevel=6, fileobj=hashing, mtime=0
        ) as stream:
            while chunk := source.read(_CHUNK):
                plain.update(chunk)
                stream.write(chunk)
    size = partial.stat().st_size
    digest = f"sha256:{packed.hexdigest()}"
    partial.rename(blob_path(layout, digest))
    return f"sha256:{plain.hexdigest()}", size, digest


class _Hashing(io.RawIOBase):
    """A writable stream that hashes what it passes on."""

    def __init__(self, sink: IO[bytes], digest: Any) -> None:
        super().__init__()
        self._sink, self._digest = sink, digest

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._digest.update(data)
        return self._sink.write(data)


def _put(layout: Path, value: Mapping[str, Any], media_type: str) -> dict[str, Any]:
    data = _json(value).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blob_path(layout, digest).write_bytes(data)
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _archive(layout: Path, target: Path) -> None:
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for file in sorted(layout.rglob("*")):
            archive.add(file, file.relative_to(layout).as_posix(), recursive=False, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member
