"""What was seen of an image as it is now: built and proven, rehearsed, or compiled alone."""

from __future__ import annotations

from pathlib import Path

from builder.artifacts.manifests import read_manifest
from builder.model import PlannedImage
from builder.model.manifest import Manifest
from builder.system.home import Home
from builder.verify.rehearse import records

COMPILED_ONLY = "compiled only: neither built nor rehearsed here"


def seen_of(out: Path, home: Home, image: PlannedImage) -> str:
    """In a few words, the most that this machine has seen of an image with this content key."""
    manifest = read_manifest(out / image.identifier)
    if manifest is not None and manifest.content_key == image.content_key:
        return _built(manifest, image)
    rehearsal = records.kept(home.rehearsals, image.content_key)
    return str(rehearsal) if rehearsal else COMPILED_ONLY


def _built(manifest: Manifest, image: PlannedImage) -> str:
    """How an image that was built ended; one with CUDA is proven as far as that goes here."""
    if manifest.outcome != "verified":
        return f"built here: {manifest.outcome}"
    emulated = ", emulated" if manifest.emulated else ""
    without = ", without a GPU" if image.cuda and manifest.proven_on_gpu is not True else ""
    return f"built and proven here{emulated}{without}"
