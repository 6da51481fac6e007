"""The manifest in an image's output folder, and what it says of the image's state."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.model import FORMATS, PlannedImage
from builder.model.exact_json import parsed
from builder.system.atomic import write_atomically
from builder.system.bound_files import SBOM, artifact_path, with_digests
from builder.system.regular_files import read_regular

MANIFEST = "manifest.json"
SCHEMA = "build-images/manifest/v1"
_TEXTS = ("image", "content_key", "engine", "outcome")
_MAPPINGS = ("cell", "artifacts", "checks")
_LATER = {
    "inputs": dict,
    "durations_s": dict,
    "tools": dict,
    "evidence": list,
    "sbom": str,
    "digests": dict,
}


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder; None if there is none that can be read."""
    try:
        manifest = parsed(read_regular(folder / MANIFEST, follow=True), most=None)
    except (OSError, ValueError):
        return None
    return manifest if _is_manifest(manifest) else None


def write_manifest(
    folder: Path, manifest: Mapping[str, Any], written: Iterable[str]
) -> dict[str, Any]:
    """Write a manifest, with the digests of the evidence and the bill `written` now; what it is."""
    whole = with_digests(folder, manifest, written)
    write_atomically(folder / MANIFEST, json.dumps(whole, indent=1, sort_keys=True) + "\n")
    return whole


def _is_manifest(value: object) -> bool:
    """Whether a value has a manifest's keys and shape, with artifacts of the known formats."""
    return (
        isinstance(value, dict)
        and value.get("schema") == SCHEMA
        and all(isinstance(value.get(key), str) for key in _TEXTS)
        and all(isinstance(value.get(key), dict) for key in _MAPPINGS)
        and all(isinstance(value[key], kind) for key, kind in _LATER.items() if key in value)
        and "oci" in value["artifacts"]
        and value["artifacts"].keys() <= set(FORMATS)
        and _are([*value["artifacts"].values()], "format", "path", "digest", "size")
        and {one.partition("-")[0] for one in value["checks"]} <= set(FORMATS)  # oci-podman, too
        and all(_are(some, "check", "outcome", "reason") for some in value["checks"].values())
        and _are(value.get("in_image_checks"), "name", "script", "needs", "timeout_s")
    )


def why_none(folder: Path) -> str:
    """Why a folder has no manifest that can be read."""
    if os.path.lexists(folder / MANIFEST):
        return f"{folder / MANIFEST}: damaged or another version's, so this is no finished image"
    return f"{folder}: no {MANIFEST} here, so this is no finished image"


def _are(some: object, *keys: str) -> bool:
    return isinstance(some, list) and all(_has(one, *keys) for one in some)


def _has(value: object, *keys: str) -> bool:
    return isinstance(value, dict) and value.keys() >= {*keys}


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a run wants of every image."""

    formats: tuple[str, ...] = FORMATS
    engine: str = "buildah"
    verify: bool = True
    epoch: int | None = None
    native_tools: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """How far an image is: `work` is build, verify or none; `text` says so in a few words."""

    work: str
    text: str
    manifest: Mapping[str, Any] | None = None


def state_of(out: Path, image: PlannedImage, wanted: Wanted) -> State:
    """What the main job has left to do for an image."""
    folder = out / image.identifier
    manifest = read_manifest(folder)
    if manifest is None:
        return State(work="build", text="to build")
    if reason := _why_not(manifest, folder, image, wanted):
        return State(work="build", text=f"to build: {reason}")
    if wanted.verify and manifest["outcome"] != "verified":
        return State(work="verify", text=f"to verify: {manifest['outcome']}", manifest=manifest)
    return State(work="none", text=f"{manifest['outcome']}, unchanged", manifest=manifest)


def _why_not(manifest: Mapping[str, Any], folder: Path, image: PlannedImage, wanted: Wanted) -> str:
    """Why what is there will not do; empty if it will."""
    if manifest.get("content_key") != image.content_key:
        return "its inputs changed"
    if manifest["engine"] != wanted.engine:
        return f"{manifest['engine']} built it"
    if absent := [name for name in wanted.formats if name not in manifest["artifacts"]]:
        return f"no {', '.join(absent)} yet"
    if reason := _other_inputs(manifest.get("inputs", {}), wanted):
        return reason
    if manifest.get("sbom", SBOM) not in manifest.get("digests", {}):
        return "an earlier version made it, and did not note the digest of its bill of materials"
    return "" if _is_whole(folder, manifest) else "its artifacts are not whole"


def _other_inputs(inputs: Mapping[str, Any], wanted: Wanted) -> str:
    """What of the inputs is not as wanted, beside those that the content key covers."""
    if not inputs.get("files") or not inputs.get("program"):
        return "an earlier version made it, and did not note from which files"
    if inputs.get("native_tools") and not wanted.native_tools:
        return "it was built with native tools"
    epoch = inputs.get("source_date_epoch")
    if wanted.epoch is not None and epoch not in (None, wanted.epoch):
        return "SOURCE_DATE_EPOCH changed"
    return ""


def _is_whole(folder: Path, manifest: Mapping[str, Any]) -> bool:
    return all(
        (path := artifact_path(folder, artifact)).exists() and size_of(path) == artifact["size"]
        for artifact in manifest["artifacts"].values()
    )


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
