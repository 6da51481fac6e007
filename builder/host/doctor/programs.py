"""The programs of this machine, and their versions."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

from builder.facts import MPI_FAMILIES
from builder.facts.mpi import launcher_family
from builder.host.doctor.diagnosis import Item
from builder.model.exact_json import part
from builder.model.versions import first_version
from builder.system.process import Completed, Processes

ENGINES, TOOLS, SITE = "engines", "tools", "MPI and Slurm on the host"
SETUP = "build-images setup"
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Program:
    """A program to look for. Without `arguments` it is not asked for its version.

    `twin` is a program of the same package, whose version it shares. Without a `package` only
    set-up installs it. `idle` is the remedy where it is installed and does not run.
    """

    name: str
    group: str
    use: str
    package: str = ""
    arguments: tuple[str, ...] = ("--version",)
    twin: str = ""
    optional: bool = False
    setup: bool = True
    idle: str = "run it by hand to see why; it may have to be installed anew"

    @property
    def remedy(self) -> str:
        ways = [f"apt-get install {self.package}" if self.package else "", SETUP * self.setup]
        return ", or ".join(filter(None, ways))


PROGRAMS = (
    Program("buildah", ENGINES, "builds the Dockerfiles", "buildah"),
    Program(
        *("docker", ENGINES, "builds the Dockerfiles with --engine docker", "docker.io"),
        arguments=("version", "--format", "{{json .}}"),
        optional=True,
        setup=False,
    ),
    Program("apptainer", ENGINES, "makes and runs SIF images"),
    Program("ch-run", ENGINES, "runs Charliecloud images", "charliecloud"),
    Program(
        *("ch-convert", ENGINES, "unpacks Charliecloud images", "charliecloud"),
        arguments=(),
        twin="ch-run",
        optional=True,
    ),
    Program(
        *("ch-image", ENGINES, "builds Dockerfiles without root", "charliecloud"),
        arguments=(),  # a Python program, the slowest of all to answer
        twin="ch-run",
        optional=True,
    ),
    Program("podman", ENGINES, "runs OCI images", "podman", optional=True, setup=False),
    Program("mmdebstrap", TOOLS, "makes the base images", "mmdebstrap"),
    Program(
        "patchelf",
        TOOLS,
        "moves native tools to where build steps see them; --no-native-tools goes without",
        "patchelf",
        optional=True,
    ),
    Program("sqfs2tar", TOOLS, "reads SIF images", "squashfs-tools-ng"),
    Program("mksquashfs", TOOLS, "packs SIF images", "squashfs-tools", ("-version",)),
    Program("pigz", TOOLS, "unpacks Charliecloud images to prove them", "pigz"),
    Program("newuidmap", TOOLS, "gives ordinary users a range of user ids", "uidmap", ()),
    Program(
        *("skopeo", TOOLS, "turns what Docker saves into an OCI layout", "skopeo"),
        optional=True,
        setup=False,
    ),
    Program(
        *("cosign", TOOLS, "signs and proves published images", "cosign", ("version",)),
        optional=True,
        setup=False,
    ),
    Program("mpirun", SITE, "starts ranks on the host", "openmpi-bin", optional=True, setup=False),
    Program(
        *("srun", SITE, "starts ranks under Slurm", "slurm-client"),
        optional=True,
        setup=False,
        idle="it is there: it finds no slurm.conf, and no controller that would tell it",
    ),
)


def program_item(program: Program, *, processes: Processes, search_path: str) -> Item:
    """Look for a program, and ask it for its version if it is installed."""
    path = shutil.which(program.name, path=search_path) or ""
    if not path:
        text = f"not found; it {program.use}"
        if program.name == "apptainer" and (older := shutil.which("singularity", path=search_path)):
            text = f"not found; {older} is there, and not what is used"
        return _item(program, text, path, program.remedy)
    if not program.arguments:
        return _item(program, "", path)
    done = answer(processes, [path, *program.arguments], search_path=search_path)
    if isinstance(done, str):
        return _item(program, f"does not run: {done}", path, program.idle)
    return _docker(program, done, path) if program.name == "docker" else _read(program, done, path)


def _read(program: Program, done: Completed, path: str) -> Item:
    output = done.stdout + done.stderr
    version = first_version(output)
    if done.returncode and not version:
        lines = output.strip().splitlines() or [f"exit status {done.returncode}"]
        return _item(program, f"does not run: {lines[-1]}", path, program.idle)
    if program.name != "mpirun":
        return _item(program, version or "found", path, version=version)
    known = MPI_FAMILIES.get(launcher_family(output))
    family = known.title if known else "unknown family"
    return _item(program, f"{family} {version}".strip(), path, version=version, family=family)


def _docker(program: Program, done: Completed, path: str) -> Item:
    """Return the item of Docker's client, which is of use only with a daemon that answers."""
    try:
        answers = json.loads(done.stdout)
    except ValueError:
        answers = None
    client = part(answers, "Client", "Version") or first_version(done.stdout)
    server = part(answers, "Server", "Version")
    if server:
        text = f"client {client}, daemon {server}"
        return _item(program, text, path, version=client, daemon=server)
    text, remedy = f"client {client}; no daemon answers", "start dockerd, or set DOCKER_HOST"
    return _item(program, text, path, remedy, version=client)


def _item(program: Program, text: str, path: str, remedy: str = "", **data: object) -> Item:
    data = {"path": path, "version": "", **data}
    key, group = program.name, program.group
    return Item(key, group, key, text, remedy, optional=program.optional, data=data)


def with_twins(items: Mapping[str, Item]) -> list[Item]:
    """Return the items of programs; one that was not asked has the version of its twin."""
    completed = dict(items)
    for program in PROGRAMS:
        item, twin = items[program.name], items.get(program.twin)
        if item.ok and twin and twin.ok:
            version = str(twin.data["version"])
            data = {**item.data, "version": version}
            completed[program.name] = replace(item, text=version, data=data)
    return list(completed.values())


def answer(processes: Processes, argv: list[str], *, search_path: str) -> Completed | str:
    """Return the output of a program, or why it cannot be asked.

    ch-run needs USER; ch-image and others written in Python need the system's own python3.
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
