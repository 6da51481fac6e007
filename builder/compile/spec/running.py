"""What an image runs: its entry point and its command, alike in all formats.

An OCI image has both in its configuration. A definition and a SIF have a run script, and ch-run
starts what it is told. So both are in a script of the image, too, which the run script starts.
"""

from __future__ import annotations

import json
import shlex

from builder.model import PlannedImage
from builder.model.scripts import OWN

RUN = OWN
IN_SPEC = "files/run"
_SHELL = ("/bin/bash",)


def has_run_script(image: PlannedImage) -> bool:
    """Return whether a recipe says what the image runs."""
    return bool(image.command or image.entrypoint)


def run_script(image: PlannedImage) -> str:
    """A script that runs its arguments, or else the command, behind the entry point."""
    before = shlex.join(image.entrypoint)
    alone = shlex.join([*image.entrypoint, *(image.command or (() if before else _SHELL))])
    given = f'{before} "$@"' if before else '"$@"'
    return f"#!/bin/sh\nif [ $# -gt 0 ]; then exec {given}; else exec {alone}; fi\n"


def docker_lines(image: PlannedImage, *, clears_entrypoint: bool) -> str:
    """ENTRYPOINT and CMD, in their exec form."""
    lines = []
    if image.entrypoint or clears_entrypoint:
        lines.append(f"ENTRYPOINT {json.dumps([*image.entrypoint])}")
    command = image.command or (() if image.entrypoint else _SHELL)
    lines.append(f"CMD {json.dumps([*command])}")
    return "\n".join(lines)


def base_archive(image: PlannedImage) -> str:
    """The name, in the spec's folder, of the OCI archive that the definition starts from."""
    return f"{image.base.name}-{image.cell.arch}.oci.tar"
