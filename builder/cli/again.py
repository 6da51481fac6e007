"""Proving again what an image's output folder holds."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.artifacts.oci import read_layout
from builder.cli.manifests import MANIFEST
from builder.cli.packing import file_digest
from builder.cli.proving import manifest_part, prove
from builder.cli.run import Run, now
from builder.cli.workspace import FILES, link_or_copy, write_atomically
from builder.errors import BadInput
from builder.model import Artifact
from builder.verify import InImageCheck, Target


def prove_again(run: Run, manifest: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Verify the artifacts in an image's output folder; the manifest, written anew there too.

    Raises `BadInput` when an artifact is missing, or is not the one that the manifest names.
    """
    run.tools.home.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=run.tools.home.work, prefix="verify-") as name:
        scratch = Path(name)
        scratch.chmod(0o755)  # the ordinary user reads here
        artifacts = {
            artifact_format: _within_reach(artifact_format, artifact, folder, scratch)
            for artifact_format, artifact in manifest["artifacts"].items()
        }
        target = _target(manifest, artifacts["oci"].path)
        started = now()
        proof = prove(run, target, artifacts, work=scratch, folder=folder)
    updated = {**manifest, **manifest_part(run, proof, target), "verified": started}
    write_atomically(folder / MANIFEST, json.dumps(updated, indent=1, sort_keys=True) + "\n")
    return updated


def _within_reach(
    artifact_format: str, artifact: Mapping[str, Any], folder: Path, scratch: Path
) -> Artifact:
    """An artifact where the ordinary user can read it: the output folder may be closed to him.

    Raises `BadInput` when the file is not the one that the manifest names.
    """
    name = FILES[artifact_format]  # never a path out of the manifest, which can be anybody's
    source, target = folder / name, scratch / name
    if not source.exists():
        raise BadInput(f"{source}: the manifest names this artifact, and it is not there")
    if source.is_dir():
        shutil.copytree(source, target, copy_function=link_or_copy)
        found = read_layout(target).digest
    else:
        link_or_copy(source, target)
        found = file_digest(target)
    if found != artifact["digest"]:
        raise BadInput(f"{source}: its digest is {found}, the manifest says {artifact['digest']}")
    return Artifact(**{**artifact, "path": target, "tree_digest": ""})


def _target(manifest: Mapping[str, Any], layout: Path) -> Target:
    return Target(
        identifier=manifest["image"],
        arch=manifest["cell"]["arch"],
        environment=read_layout(layout).environment,
        checks=tuple(
            InImageCheck(**{**check, "needs": tuple(check["needs"])})
            for check in manifest["in_image_checks"]
        ),
    )
