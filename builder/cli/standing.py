"""Whether an image that its manifest calls done is: its bytes and its evidence, not their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.agreement import faults_of, read_statements, required_checks
from builder.artifacts.oci import read_layout
from builder.cli.manifests import State, Wanted, state_of
from builder.digests import sha256_of_file
from builder.errors import StepFailed
from builder.model import PlannedImage


def proven_state(out: Path, image: PlannedImage, wanted: Wanted) -> State:
    """What the main job has left to do for an image, by all bytes of what is there."""
    state, folder = state_of(out, image, wanted), out / image.identifier
    if state.work != "none" or state.manifest is None:
        return state
    if changed := _changed(folder, state.manifest):
        return State(work="build", text=f"to build: its {changed} is not what was made")
    if not wanted.verify:
        return state
    required = required_checks([check.name for check in image.checks], image.cell.mpi)
    statements = read_statements(folder, state.manifest)
    if faults := faults_of(state.manifest, statements, required=required):
        return State(work="verify", text=f"to verify: {faults[0]}", manifest=state.manifest)
    return state


def _changed(folder: Path, manifest: Mapping[str, Any]) -> str:
    """The first format whose bytes are not those that the manifest names; empty if all are."""
    for name, artifact in manifest["artifacts"].items():
        try:
            digest = _digest(folder / str(artifact["path"]))
        except (OSError, StepFailed, LookupError, TypeError, ValueError):
            digest = "damaged"
        if digest != artifact["digest"]:
            return str(name)
    return ""


def _digest(path: Path) -> str:
    """The digest of a file, or of an OCI layout, whose blobs are all read."""
    if not path.is_dir():
        return f"sha256:{sha256_of_file(path)}"
    layout = read_layout(path)
    for blob in layout.layers:
        if sha256_of_file(blob) != blob.name:
            raise StepFailed(f"{blob}: not the blob that it is named for")
    return layout.digest
