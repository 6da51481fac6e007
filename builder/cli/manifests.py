"""The manifest in an image's output folder, and what it says of the image's state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.model import PlannedImage

MANIFEST = "manifest.json"
SCHEMA = "build-images/manifest/v1"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder; None if there is none that can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("schema") == SCHEMA else None


def finished_manifest(
    out: Path, image: PlannedImage, *, formats: Sequence[str], engine: str, verify: bool
) -> dict[str, Any] | None:
    """The manifest of an image that is done, unchanged and still whole; else None."""
    folder = out / image.identifier
    manifest = read_manifest(folder)
    if manifest is None or not _is_current(manifest, image):
        return None
    if manifest["engine"] != engine or not set(formats) <= manifest["artifacts"].keys():
        return None
    if manifest["outcome"] not in ({"verified"} if verify else {"verified", "built"}):
        return None
    return manifest if _is_whole(folder, manifest) else None


def state_of(out: Path, image: PlannedImage) -> str:
    """What the main job would do with an image, in a few words."""
    folder = out / image.identifier
    manifest = read_manifest(folder)
    if manifest is None:
        return "to build"
    if not _is_current(manifest, image):
        return "to build: its inputs changed"
    if not _is_whole(folder, manifest):
        return "to build: its artifacts are not whole"
    return "verified, unchanged" if manifest["outcome"] == "verified" else "to verify"


def _is_current(manifest: Mapping[str, Any], image: PlannedImage) -> bool:
    return bool(manifest.get("content_key") == image.content_key)


def _is_whole(folder: Path, manifest: Mapping[str, Any]) -> bool:
    return all(
        (path := folder / str(artifact["path"])).exists() and size_of(path) == artifact["size"]
        for artifact in manifest["artifacts"].values()
    )


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
