"""What a project says of an image that was built: its checks, and the bytes of its harness.

A manifest says the same, and anyone can edit it. Where the project would build the very same image,
the project is asked.
"""

from __future__ import annotations

from pathlib import Path

from builder.build.planning import plan_of
from builder.compile.spec import block_faults
from builder.compile.spec.image_scripts import check_files
from builder.load.project import RUN_CHECKS, load_project
from builder.model import AXES, Cell, PlannedImage, Selection
from builder.model.contract import FILE, as_text, contract_of
from builder.model.digests import digest_of
from builder.model.errors import BuildImagesError
from builder.model.manifest import Manifest
from builder.verify import Target


def expected_target(project: Path, manifest: Manifest) -> Target | None:
    """What has to be proven of an image, as its project says; None if it would build another."""
    from builder.verify.image_job import target_of  # noqa: PLC0415 - it imports hpccm, which publish does not

    image = _planned(project, manifest)
    if image is None:
        return None
    return target_of(image, {}, specs=harness_digests(image, project))


def harness_digests(image: PlannedImage, project: Path) -> dict[str, str]:
    """The digests of the files of an image's harness, by their names in its spec."""
    if not image.checks:
        return {}
    files = check_files(image, (project / RUN_CHECKS).read_text())
    files[FILE] = as_text(contract_of(image))
    return {name: digest_of(text.encode()) for name, text in files.items()}


def _planned(project: Path, manifest: Manifest) -> PlannedImage | None:
    try:
        loaded = load_project(project, block_faults=block_faults)
        plan = plan_of(loaded, _selection(manifest.cell))
    except (BuildImagesError, OSError, LookupError, TypeError):
        return None  # there is no project here, or none with such an image
    wanted = (manifest.image, manifest.content_key)
    return next((one for one in plan.images if (one.identifier, one.content_key) == wanted), None)


def _selection(cell: Cell) -> Selection:
    """What selects the one cell of a manifest."""
    return Selection(
        patterns={axis: (cell.axis(axis),) for axis in ("recipe", *AXES)},
        flavours=(cell.flavour,),
        cpu_targets=(cell.cpu,),
    )
