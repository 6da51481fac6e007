"""The block `copy`: hpccm's own, and from the development stage as a recipe can name that."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping

import hpccm.config
import hpccm.primitives
from hpccm.primitives import shell

from builder.model import DEVELOPMENT, PlannedImage


class copy(hpccm.primitives.copy):  # type: ignore[misc]  # noqa: N801 - hpccm has no types
    """The `copy` block copies files of the project, or of the development stage.

    # Parameters

    dest: Path in the image.

    files: Dictionary of files of the project, each with its path in
    the image.

    from: `development` copies from the development stage, in
    `runtime` alone.

    src: File of the project, or a path in the development stage.

    # Examples
    """


def from_development(
    given: Mapping[str, object], image: PlannedImage
) -> hpccm.primitives.shell | hpccm.primitives.copy:
    """The object of hpccm's that copies paths of the development stage into the last one."""
    src, dest = given["src"], given["dest"]
    if image.cell.flavour == DEVELOPMENT:  # the stages are one
        sources = [str(one) for one in src] if isinstance(src, list) else [str(src)]
        return shell(commands=[_copied(str(dest), sources)])
    is_docker = hpccm.config.get_format() == "docker"
    stage = f"{image.stages[-1].name}-{DEVELOPMENT}" if is_docker else DEVELOPMENT
    return hpccm.primitives.copy(_from=stage, src=src, dest=dest)


def _copied(dest: str, sources: list[str]) -> str:
    """A command that leaves a path alone which is copied to itself."""
    folder = dest if dest.endswith("/") else posixpath.dirname(dest)
    others = [
        source for source in sources if posixpath.normpath(source) != posixpath.normpath(dest)
    ]
    if not others:
        return "true"
    return f"mkdir -p {shlex.quote(folder)} && cp -r {shlex.join(others)} {shlex.quote(dest)}"
