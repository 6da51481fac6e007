"""The scripts of an image: one for each check, and one that runs the image's command."""

from __future__ import annotations

import json
import shlex

from builder.model import PlannedImage, StageCheck, StageRecipe
from builder.model.planned import OWN_RUN

IN_IMAGE = "/opt/build-images"
SOURCES = f"{IN_IMAGE}/src"
PROGRAMS = f"{IN_IMAGE}/bin"
SCRIPTS = f"{IN_IMAGE}/checks"
RUN_CHECKS = f"{IN_IMAGE}/run-checks"
EXECUTABLE = ("files/checks/", "files/run")  # run-checks, and the script of the image's command


def check_files(image: PlannedImage, run_checks: str) -> dict[str, str]:
    """Return the files that the specs copy in, by path in the spec's folder."""
    files = {"files/run-checks": run_checks}
    for script, check in zip(script_names(image), image.checks, strict=True):
        files[f"files/checks/{script}"] = _script(check)
        files.update({f"files/src/{name}": text for name, text in check.sources.items()})
    return dict(sorted(files.items()))


def script_names(image: PlannedImage) -> tuple[str, ...]:
    """Return the scripts' names in running order: `10-architecture`; `010-` with ten or more."""
    width = len(str(10 * len(image.checks)))
    return tuple(f"{10 * (n + 1):0{width}}-{check.name}" for n, check in enumerate(image.checks))


def script_of(image: PlannedImage, check: StageCheck) -> str:
    """Return the path in the image of the script that runs a check."""
    return f"{SCRIPTS}/{script_names(image)[image.checks.index(check)]}"


def stage_sources(image: PlannedImage, stage: StageRecipe) -> list[str]:
    """Return the sources of a stage's checks as paths in the spec's folder, without duplicates."""
    sources = (
        f"files/src/{name}"
        for check in image.checks
        if check.name in stage.checks
        for name in check.sources
    )
    return list(dict.fromkeys(sources))


def stage_builds(image: PlannedImage, stage: StageRecipe) -> list[str]:
    """Return the commands that build a stage's checks."""
    commands = [c for check in image.checks if check.name in stage.checks for c in check.build]
    if not commands:
        return []
    # Open MPI's compiler wrapper does not start without a HOME, and ch-image sets none.
    variables = f"export SRC={SOURCES} OUT={PROGRAMS} HOME=${{HOME:-/tmp}}"
    return [f"mkdir -p {PROGRAMS}", variables, *commands]


def _script(check: StageCheck) -> str:
    return (
        "#!/bin/sh\n"
        f"# {check.about}\n"
        f"# at most {check.timeout_s} s; exit status: 0 passed, 77 skipped, else failed\n"
        f"SRC={SOURCES} OUT={PROGRAMS} PATH={PROGRAMS}:$PATH HOME=${{HOME:-/tmp}}\n"
        "export SRC OUT PATH HOME  # Open MPI does not start without a HOME\n"
        f"{check.run}\n"
    )


RUN = OWN_RUN
IN_SPEC = "files/run"
_SHELL = ("/bin/bash",)


def has_run_script(image: PlannedImage) -> bool:
    """Return whether a recipe sets the command or entry point of the image."""
    return bool(image.command or image.entrypoint)


def run_script(image: PlannedImage) -> str:
    """Return a script that runs the entry point with its arguments, or with the command."""
    before = shlex.join(image.entrypoint)
    alone = shlex.join([*image.entrypoint, *(image.command or (() if before else _SHELL))])
    arguments = f'{before} "$@"' if before else '"$@"'
    return f"#!/bin/sh\nif [ $# -gt 0 ]; then exec {arguments}; else exec {alone}; fi\n"


def docker_lines(image: PlannedImage, *, clears_entrypoint: bool) -> list[str]:
    """Return the lines of ENTRYPOINT and CMD, in exec form."""
    lines = []
    if image.entrypoint or clears_entrypoint:
        lines.append(f"ENTRYPOINT {json.dumps([*image.entrypoint])}")
    command = image.command or (() if image.entrypoint else _SHELL)
    return [*lines, f"CMD {json.dumps([*command])}"]


def base_archive(image: PlannedImage) -> str:
    """Return the name, in the spec's folder, of the OCI archive that the definition starts from."""
    return f"{image.base.name}-{image.cell.arch}.oci.tar"
