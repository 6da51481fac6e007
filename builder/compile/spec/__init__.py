"""Compile planned images to text; only this package imports hpccm.

A spec is a folder: `Dockerfile`, `Singularity.def` and `files/` (the checks' sources and scripts,
the host contract, and what recipes copy), complete in itself. The Singularity definition reads its
base, an OCI archive, from the file named by `base_archive` in that folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING

from builder.compile.spec.catalogue import limit_reason
from builder.compile.spec.image_scripts import (
    IN_SPEC,
    base_archive,
    check_files,
    has_run_script,
    run_script,
)
from builder.compile.spec.rules import block_faults
from builder.model import PlannedImage, Spec
from builder.model.contract import FILE, as_text, contract_of

if TYPE_CHECKING:
    from builder.compile.spec.downloads import Downloads

COMPILER = f"hpccm {version('hpccm')}"

__all__ = [
    "COMPILER",
    "base_archive",
    "block_faults",
    "compile_spec",
    "downloads_of",
    "limit_reason",
]


def compile_spec(image: PlannedImage, *, run_checks: str) -> Spec:
    """Compile one image; the same image gives the same bytes, on any machine.

    `run_checks` is the text of the script that runs all checks inside the image. Not safe in
    threads: hpccm keeps process-wide state.
    """
    from builder.compile.spec.downloads import recorded  # noqa: PLC0415 - plans are made without hpccm
    from builder.compile.spec.driver import placed_dockerfile, singularity  # noqa: PLC0415
    from builder.compile.spec.hpccm_blocks import project_files  # noqa: PLC0415

    with recorded() as downloads:
        (docker, origins), definition = placed_dockerfile(image), singularity(image)
    return Spec(
        image=image,
        dockerfile=docker,
        singularity=definition,
        files={
            **check_files(image, run_checks),
            **project_files(image),
            **({IN_SPEC: run_script(image)} if has_run_script(image) else {}),
            FILE: as_text(contract_of(image)),
        },
        sources=tuple(one for _, one in sorted(downloads.copied.items())),
        origins=origins,
    )


def downloads_of(images: Iterable[PlannedImage]) -> Downloads:
    """Return the downloads of images' blocks, locked or not. Not thread-safe."""
    from builder.compile.spec.downloads import recorded  # noqa: PLC0415 - see compile_spec
    from builder.compile.spec.driver import dockerfile  # noqa: PLC0415

    with recorded(locking=True) as downloads:
        for image in images:
            dockerfile(image)
    return downloads
