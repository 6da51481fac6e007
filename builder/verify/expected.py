"""An image as its project describes it: its checks, and the bytes of its harness.

A manifest says the same, and anyone can edit it. Where the project would build the very same image,
the project is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from builder.build.planning import plan_of
from builder.compile.spec import block_faults
from builder.compile.spec.image_scripts import check_files, script_of
from builder.load.project import RUN_CHECKS, load_project
from builder.model import AXES, PlannedImage, Selection, Spec
from builder.model.contract import FILE, as_text, contract_of
from builder.model.digests import digest_of
from builder.model.errors import BuildImagesError
from builder.model.manifest import AskedRanks, InImageCheck, Manifest
from builder.model.package_indices import IndexState
from builder.verify.checks import ProofTarget
from builder.verify.harness import harness_of


def expected_target(project: Path, manifest: Manifest) -> ProofTarget | None:
    """Return an image as its project describes it; None if the project would build another."""
    cell = manifest.cell
    selection = Selection(
        patterns={axis: (cell.axis(axis),) for axis in ("recipe", *AXES)},
        flavours=(cell.flavour,),
        cpu_targets=(cell.cpu,),
    )
    try:
        plan = plan_of(load_project(project, block_faults=block_faults), selection)
    except (BuildImagesError, OSError, LookupError, TypeError):
        return None  # there is no project here, or none with such an image
    for image in plan.images:
        if (image.identifier, image.content_key) == (manifest.image, manifest.content_key):
            return target_of(image, harness_digests(image, project))
    return None


def harness_digests(image: PlannedImage, project: Path) -> dict[str, str]:
    """Return the digests of the files of an image's harness, by their names in its spec."""
    if not image.checks:
        return {}
    files = check_files(image, (project / RUN_CHECKS).read_text())
    files[FILE] = as_text(contract_of(image))
    return _digests(files)


def spec_digests(spec: Spec) -> dict[str, str]:
    """Return the digests of the files that a spec copies in, by their names."""
    return _digests(spec.files)


def _digests(files: Mapping[str, str]) -> dict[str, str]:
    return {name: digest_of(text.encode()) for name, text in files.items()}


def target_of(
    image: PlannedImage, specs: Mapping[str, str], *, indices: tuple[IndexState, ...] = ()
) -> ProofTarget:
    """Return what the verification needs to know of a planned image; `specs` as in `harness_of`.

    Variables and working directory are those of its OCI layout, which is not known here.
    """
    return ProofTarget(
        identifier=image.identifier,
        arch=image.cell.arch,
        environment={},
        mpi=image.cell.mpi,
        harness=harness_of(specs),
        indices=indices,
        checks=tuple(
            InImageCheck(
                name=check.name,
                script=script_of(image, check),
                needs=check.needs,
                timeout_s=check.timeout_s,
                asked=(
                    AskedRanks.of_command(check.run, image.mpi.family, image.mpi.version)
                    if image.mpi
                    else AskedRanks()
                ),
            )
            for check in image.checks
        ),
    )
