"""The commands that run an image, as a site would type them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from builder.model import NONE
from builder.model.manifest import Manifest

RUN_CHECKS = "/opt/build-images/run-checks"


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One line for a terminal, and what it does."""

    about: str
    line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """The commands of one container runtime."""

    runtime: str
    commands: tuple[Command, ...]


def recipes_of(manifest: Manifest, *, folder: str) -> tuple[Recipe, ...]:
    """Return how to run each artifact that the image has, from the folder that holds `folder`."""
    image, mpi = manifest.image, manifest.cell.mpi
    launch = {} if mpi == NONE else {"launch": "mpiexec -n 4" if "mpich" in mpi else "mpirun -np 4"}
    makers = {"sif": _apptainer, "charliecloud": _charliecloud, "oci": _podman}
    found = []
    for format_, maker in makers.items():
        artifact = manifest.artifacts.get(format_)
        if artifact:
            path = shlex.quote(f"{folder}/{image}/{artifact.path}")
            found.append(maker(path, image, **launch))
    return tuple(found)


def _apptainer(path: str, _image: str, launch: str = "") -> Recipe:
    commands = [
        ("run the checks in it again", f"apptainer exec {path} {RUN_CHECKS}"),
        ("the same, through %test", f"apptainer test {path}"),
    ]
    if launch:
        line = f"{launch} apptainer exec {path} ./program"
        commands.append(("an MPI program, started by the host's MPI", line))
    return _recipe("Apptainer", commands)


def _charliecloud(path: str, image: str, launch: str = "") -> Recipe:
    folder = shlex.quote(f"/var/tmp/{image}")  # noqa: S108 - where a site unpacks, not this program
    commands = [
        ("unpack", f"ch-convert -i tar -o dir {path} {folder}"),
        ("or with tar alone", f"mkdir -p {folder} && tar -xzf {path} -C {folder}"),
        ("run the checks in it again", f"ch-run --set-env -w {folder} -- {RUN_CHECKS}"),
    ]
    if launch:
        line = f"{launch} ch-run --set-env -w {folder} -- ./program"
        commands.append(("an MPI program, started by the host's MPI", line))
    return _recipe("Charliecloud", commands)


def _podman(path: str, _image: str, launch: str = "") -> Recipe:
    commands = [("run the checks in it again", f"podman run --rm oci:{path} {RUN_CHECKS}")]
    if launch:
        line = f"podman run --rm -v .:/work -w /work oci:{path} {launch} ./program"
        commands.append(("an MPI program, started by the image's MPI", line))
    return _recipe("Podman", commands)


def _recipe(runtime: str, commands: Sequence[tuple[str, str]]) -> Recipe:
    lines = tuple(Command(about=about, line=line) for about, line in commands)
    return Recipe(runtime=runtime, commands=lines)
