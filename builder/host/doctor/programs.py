"""Which programs this machine has, in which version."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

from builder.facts import MPI_FAMILIES
from builder.facts.mpi import launcher_family
from builder.host.doctor.diagnosis import Item
from builder.model.versions import first_version
from builder.system.process import Completed, Processes

ENGINES, TOOLS, SITE = "engines", "tools", "MPI and Slurm on the host"
SETUP = "build-images setup"
TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program to look for. Without `arguments` it is not asked for its version.

    `twin` is a program of the same package, whose version it shares. Without a `package` it is
    set-up alone that brings the program. `idle` says what to do where it is there and does not run.
    """

    name: str
    group: str
    why: str
    package: str = ""
    arguments: tuple[str, ...] = ("--version",)
    twin: str = ""
    optional: bool = False
    setup: bool = True
    idle: str = "run it by hand to see why; it may have to be installed anew"

    @property
    def remedy(self) -> str:
        ways = [f"apt-get install {self.package}"] if self.package else []
        return ", or ".join([*ways, *([SETUP] if self.setup else [])])


PROGRAMS = (
    Program(name="buildah", group=ENGINES, why="builds the Dockerfiles", package="buildah"),
    Program(
        name="docker",
        group=ENGINES,
        why="builds the Dockerfiles with --engine docker",
        package="docker.io",
        arguments=("version", "--format", "{{json .}}"),
        optional=True,
        setup=False,
    ),
    Program(name="apptainer", group=ENGINES, why="makes and runs SIF images"),
    Program(name="ch-run", group=ENGINES, why="runs Charliecloud images", package="charliecloud"),
    Program(
        name="ch-convert",
        group=ENGINES,
        why="unpacks Charliecloud images",
        package="charliecloud",
        arguments=(),
        twin="ch-run",
        optional=True,
    ),
    Program(
        name="ch-image",
        group=ENGINES,
        why="builds Dockerfiles without root",
        package="charliecloud",
        arguments=(),  # a Python program, the slowest of all to answer
        twin="ch-run",
        optional=True,
    ),
    Program(
        name="podman",
        group=ENGINES,
        why="runs OCI images",
        package="podman",
        optional=True,
        setup=False,
    ),
    Program(
        name="mmdebstrap",
        group=TOOLS,
        why="makes the base images",
        package="mmdebstrap",
    ),
    Program(
        name="patchelf",
        group=TOOLS,
        why="moves native tools to where build steps see them; --no-native-tools goes without",
        package="patchelf",
        optional=True,
    ),
    Program(name="sqfs2tar", group=TOOLS, why="reads SIF images", package="squashfs-tools-ng"),
    Program(
        name="mksquashfs",
        group=TOOLS,
        why="packs SIF images",
        package="squashfs-tools",
        arguments=("-version",),
    ),
    Program(
        name="pigz", group=TOOLS, why="unpacks Charliecloud images to prove them", package="pigz"
    ),
    Program(
        name="newuidmap",
        group=TOOLS,
        why="gives ordinary users a range of user ids",
        package="uidmap",
        arguments=(),
    ),
    Program(
        name="skopeo",
        group=TOOLS,
        why="turns what Docker saves into an OCI layout",
        package="skopeo",
        optional=True,
        setup=False,
    ),
    Program(
        name="cosign",
        group=TOOLS,
        why="signs and proves published images",
        package="cosign",
        arguments=("version",),
        optional=True,
        setup=False,
    ),
    Program(
        name="mpirun",
        group=SITE,
        why="starts ranks on the host",
        package="openmpi-bin",
        optional=True,
        setup=False,
    ),
    Program(
        name="srun",
        group=SITE,
        why="starts ranks under Slurm",
        package="slurm-client",
        optional=True,
        setup=False,
        idle="it is there: it finds no slurm.conf, and no controller that would tell it",
    ),
)


def asked(program: Program, *, processes: Processes, search_path: str) -> Item:
    """Look for a program, and ask it for its version if it is there."""
    found = shutil.which(program.name, path=search_path)
    if found is None and program.name == "apptainer":
        return _without_apptainer(program, search_path)
    if found is None:
        return _item(program, ok=False, text=f"not found; it {program.why}", path="")
    if not program.arguments:
        return _item(program, ok=True, text="", path=found)
    done = answer(processes, [found, *program.arguments], search_path=search_path)
    if isinstance(done, str):
        return _item(program, ok=False, text=f"does not run: {done}", path=found)
    return _read(program, done, found)


def with_twins(items: Mapping[str, Item]) -> list[Item]:
    """The programs that were not asked, with the version of the one that they come with."""
    found = dict(items)
    for program in PROGRAMS:
        item, twin = found[program.name], found.get(program.twin)
        if item.ok and twin and twin.ok:
            version = str(twin.data["version"])
            data = {**item.data, "version": version}
            found[program.name] = replace(item, text=version, data=data)
    return list(found.values())


def answer(processes: Processes, argv: list[str], *, search_path: str) -> Completed | str:
    """What a program says about itself, or why it cannot be asked.

    ch-run wants USER; ch-image and others written in Python want the system's own python3.
    """
    environment = {
        "USER": os.environ.get("USER") or "nobody",
        "PATH": f"/usr/bin:/bin:{search_path}",
        "LC_ALL": "C",
    }
    try:
        done = processes.capture(argv, env=environment, check=False, timeout_s=TIMEOUT_S)
    except OSError as error:  # not a program, or one of another architecture
        return error.strerror or str(error)
    return f"no answer within {TIMEOUT_S:.0f} s" if done.timed_out else done


def _read(program: Program, done: Completed, path: str) -> Item:
    if program.name == "docker":
        return _docker(program, done, path)
    text = done.stdout + done.stderr
    version = first_version(text)
    if done.returncode and not version:
        lines = text.strip().splitlines() or [f"exit status {done.returncode}"]
        return _item(program, ok=False, text=f"does not run: {lines[-1]}", path=path)
    if program.name == "mpirun":
        known = MPI_FAMILIES.get(launcher_family(text))
        family = known.title if known else "unknown family"
        shown = f"{family} {version}".strip()
        return _item(program, ok=True, text=shown, path=path, version=version, family=family)
    return _item(program, ok=True, text=version or "found", path=path, version=version)


def _docker(program: Program, done: Completed, path: str) -> Item:
    """The client is of use only with a daemon that answers."""
    try:
        found = json.loads(done.stdout)
        client = str(found["Client"]["Version"])
        server = (found.get("Server") or {}).get("Version", "")
    except (ValueError, KeyError, TypeError, AttributeError):
        client = first_version(done.stdout)
        server = ""
    if server:
        text = f"client {client}, daemon {server}"
        return _item(program, ok=True, text=text, path=path, version=client, daemon=server)
    item = _item(
        program, ok=False, text=f"client {client}; no daemon answers", path=path, version=client
    )
    return replace(item, remedy="start dockerd, or set DOCKER_HOST")


def _without_apptainer(program: Program, search_path: str) -> Item:
    older = shutil.which("singularity", path=search_path)
    also = f"; {older} is there, and not what is used" if older else f"; it {program.why}"
    return _item(program, ok=False, text=f"not found{also}", path="")


def _item(program: Program, *, ok: bool, text: str, path: str, **data: object) -> Item:
    return Item(
        key=program.name,
        group=program.group,
        title=program.name,
        ok=ok,
        text=text,
        remedy="" if ok else program.idle if path else program.remedy,
        optional=program.optional,
        data={"path": path, "version": "", **data},
    )
