"""Whether an image that its manifest calls done is: its bytes and its evidence, not their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from builder.artifacts.manifests import State, Wanted, read_statements, state_of
from builder.artifacts.oci import read_layout
from builder.model import PlannedImage
from builder.model.agreement import faults_of, required_checks
from builder.model.digests import sha256_of_file
from builder.model.errors import BadInput, StepFailed
from builder.model.manifest import Manifest
from builder.system.bound_files import artifact_path, read_bound
from builder.verify.harness import harness_of, within


def proven_state(
    out: Path, image: PlannedImage, wanted: Wanted, specs: Mapping[str, str] | None = None
) -> State:
    """What the main job has left to do for an image, by all bytes of what is there.

    `specs` are the digests of the files that its spec copies in.
    """
    state, folder = state_of(out, image, wanted), out / image.identifier
    if state.work != "none" or state.manifest is None:
        return state
    if changed := _changed(folder, state.manifest):
        return State(work="build", text=f"to build: its {changed} is not what was made")
    if not wanted.verify:
        return state
    required = required_checks([check.name for check in image.checks], image.cell.mpi)
    statements = read_statements(folder, state.manifest)
    harness = within(harness_of(specs or {})) if image.checks else {}
    faults = faults_of(state.manifest, statements, required=required, harness=harness)
    if faults := faults or _unbound(folder, state.manifest, statements):
        return State(work="verify", text=f"to verify: {faults[0]}", manifest=state.manifest)
    return state


def _changed(folder: Path, manifest: Manifest) -> str:
    """The first format whose bytes are not those that the manifest names; empty if all are."""
    for name, artifact in manifest.artifacts.items():
        try:
            digest = _digest(artifact_path(folder, artifact))
        except (OSError, StepFailed, LookupError, TypeError, ValueError):
            digest = "damaged"
        if digest != artifact.digest:
            return name
    return "bill of materials" if _unbound(folder, manifest, [manifest.sbom]) else ""


def _unbound(folder: Path, manifest: Manifest, names: Iterable[str]) -> list[str]:
    """Return which of some files are not those that a manifest names by their digests."""
    faults = []
    for name in names:
        try:
            read_bound(folder, manifest, name)
        except BadInput as error:
            faults.append(str(error.args[0]))
    return faults


def _digest(path: Path) -> str:
    """The digest of a file, or of an OCI layout, whose blobs are all read."""
    if not path.is_dir():
        return f"sha256:{sha256_of_file(path)}"
    layout = read_layout(path)
    for blob in layout.layers:
        if sha256_of_file(blob) != blob.name:
            raise StepFailed(f"{blob}: not the blob that it is named for")
    return layout.digest
