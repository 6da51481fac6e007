"""One image's way: from its spec to proven artifacts in the output folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from builder import __version__
from builder.artifacts import oci
from builder.bases import StoredBase
from builder.cli.manifests import MANIFEST, SCHEMA
from builder.cli.packing import Packer
from builder.cli.proving import artifact_part, manifest_part, prove
from builder.cli.run import Run, Timer, now
from builder.cli.workspace import (
    FILES,
    Workspace,
    remove,
    workspace,
    write_atomically,
    write_spec,
)
from builder.errors import StepFailed
from builder.model import Artifact, PlannedImage, Spec
from builder.spec import COMPILER, base_archive
from builder.spec.checks import script_of
from builder.verify import InImageCheck, Target

SBOM = "sbom.cdx.json"


def make_image(run: Run, spec: Spec) -> dict[str, Any]:
    """Build, pack and verify one image; its manifest, also written to the output folder.

    Raises `StepFailed` when the build or the packing fails; failed checks are in the manifest.
    The manifest is written last: without it, nothing in the folder is taken for done.
    """
    image, timer, started = spec.image, Timer(), now()
    folder = run.out / image.identifier
    owner = run.tools.ordinary_user
    with workspace(
        run.tools.home, image, engine=run.engine.name, owner=owner, fresh=not run.cache
    ) as work:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        packer = Packer(run=run, image=image, work=work, timer=timer)
        try:
            base = packer.base()
            work.start_from(base.digest if base else image.base_image)
            for place in (work.context, folder):
                archive = base.archive if base else None
                write_spec(spec, archive, place, base_archive(image), run.sources)
            artifacts = packer.artifacts(base)
            for name, artifact in artifacts.items():  # of those kept from an earlier run, too
                timer.seconds.setdefault(name, artifact.duration_s)
            proof = _proof(run, image, artifacts, work, timer, folder)
        except StepFailed as error:
            error.log = error.log and folder / "build.log"  # the workspace is not the user's
            raise
        finally:
            shutil.copyfile(work.log, folder / "build.log")
        bill = work.remember("sbom", dict)
        write_atomically(folder / SBOM, _json(bill))
        _hand_over(work, artifacts.values(), folder)
    manifest = {
        "schema": SCHEMA,
        "image": image.identifier,
        "about": image.stages[-1].about,
        "cell": {name: getattr(image.cell, name) for name in image.cell.__slots__},
        "content_key": image.content_key,
        "engine": run.engine.name,
        "emulated": image.cell.arch != run.host.arch,
        "inputs": {**_inputs(image, base, spec), "source_date_epoch": run.epoch},
        "tools": dict(run.versions),
        "sbom": SBOM,
        "packages": len(bill["components"]),
        "started": started,
        "durations_s": timer.seconds,
        "in_image_checks": [asdict(check) for check in target_of(image, {}).checks],
        **proof,
    }
    write_atomically(folder / MANIFEST, _json(manifest))
    return manifest


def target_of(image: PlannedImage, environment: Mapping[str, str]) -> Target:
    """What the verification needs to know of an image."""
    return Target(
        identifier=image.identifier,
        arch=image.cell.arch,
        environment=environment,
        checks=tuple(
            InImageCheck(
                name=check.name,
                script=script_of(image, check),
                needs=check.needs,
                timeout_s=check.timeout_s,
            )
            for check in image.checks
        ),
    )


def _proof(
    run: Run,
    image: PlannedImage,
    artifacts: Mapping[str, Artifact],
    work: Workspace,
    timer: Timer,
    folder: Path,
) -> dict[str, Any]:
    if not run.verify:
        return {
            "artifacts": {name: artifact_part(one) for name, one in artifacts.items()},
            "tree_digest": "",
            "formats_equal": None,
            "checks": {},
            "outcome": "built",
            "proven_on_gpu": False if any(check.needs_gpu for check in image.checks) else None,
            "evidence": [],
        }
    target = target_of(image, oci.read_layout(artifacts["oci"].path).environment)
    shutil.rmtree(folder / "evidence", ignore_errors=True)
    with timer.step("verify"):
        proof = prove(run, target, artifacts, work=work.path, folder=folder)
    return manifest_part(run, proof, target)


def _hand_over(work: Workspace, artifacts: Iterable[Artifact], folder: Path) -> None:
    """Move the artifacts to the output folder, where none of an older image stays; end the work."""
    for name in FILES.values():
        remove(folder / name)
    for artifact in artifacts:
        shutil.move(artifact.path, folder / artifact.path.name)
    shutil.rmtree(work.path, ignore_errors=True)


def _inputs(image: PlannedImage, base: StoredBase | None, spec: Spec) -> dict[str, Any]:
    return {
        "recipes": [{"name": stage.name, "version": stage.version} for stage in image.stages],
        "base": {
            "name": image.base.name,
            "image": image.base_image,
            "key": base.key if base else "",
            "digest": base.digest if base else "",
            "made": base.made if base else "",
        },
        "specs": {
            "Dockerfile": _sha256(spec.dockerfile),
            "Singularity.def": _sha256(spec.singularity),
            **{name: _sha256(text) for name, text in spec.files.items()},
        },
        "sources": {one.url: f"sha256:{one.sha256}" for one in spec.sources},
        "compiler": COMPILER,
        "build-images": __version__,
    }


def _sha256(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
