"""The programs on this machine, and their versions."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from builder.facts import MPI_FAMILIES
from builder.facts.mpi import launcher_family
from builder.host.doctor.diagnosis import Item
from builder.model.exact_json import part
from builder.model.versions import first_version
from builder.system.files import table_beside
from builder.system.process import Completed, Processes

SETUP = "build-images setup"
TIMEOUT_S = 15.0  # a busy login node may take seconds to start a program
_LAUNCHERS = ("mpirun", "mpiexec")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostProgram:
    """A program to look for: a row of programs.yaml, where its fields are explained."""

    name: str
    group: str
    use: str
    package: str = ""
    arguments: Sequence[str] = ("--version",)
    twin: str = ""
    optional: bool = False
    setup: bool | str = True
    idle: str = "run it by hand to see why; reinstall it if needed"

    @property
    def remedy(self) -> str:
        options = f" {self.setup}" if isinstance(self.setup, str) else ""
        ways = [f"apt-get install {self.package}" if self.package else ""]
        ways += [f"{SETUP}{options}"] if self.setup else []
        return ", or ".join(filter(None, ways))


@cache
def host_programs() -> Sequence[HostProgram]:
    """Return all programs to look for."""
    return [HostProgram(**row) for row in table_beside(__file__, "programs.yaml")]


class Programs:
    """Runs programs of a search path to read facts; a program that fails leaves them unknown."""

    def __init__(self, processes: Processes, search_path: str) -> None:
        self._processes, self._search_path = processes, search_path

    def find(self, name: str) -> str | None:
        return shutil.which(name, path=self._search_path)

    def ask(self, path: str, *arguments: str) -> Completed | str:
        """Return a finished program with its output, or the reason why it could not run.

        ch-run needs USER; ch-image and other Python programs need the system's python3. Intel MPI's
        mpirun is a script that starts the program beside it by name.
        """
        beside = f"{Path(path).parent}:" if Path(path).name.startswith(_LAUNCHERS) else ""
        environment = {
            "USER": os.environ.get("USER") or "nobody",
            "PATH": f"{beside}/usr/bin:/bin:{self._search_path}",
            "LC_ALL": "C",
        }
        argv = [path, *arguments]
        try:
            done = self._processes.capture(argv, env=environment, check=False, timeout_s=TIMEOUT_S)
        except OSError as error:  # not a program, or one of another architecture
            return error.strerror or str(error)
        return f"no answer within {TIMEOUT_S:.0f} s" if done.timed_out else done

    def output(self, name: str, *arguments: str, check: bool = True) -> str:
        """Return both streams of a program; empty if it is missing or, with `check`, fails."""
        path = self.find(name)
        done = path and self.ask(path, *arguments)
        if not done or isinstance(done, str) or (check and done.returncode):
            return ""
        return done.stdout + done.stderr


def program_item(program: HostProgram, programs: Programs) -> Item:
    """Return the item of a program, with its version if it is installed."""
    path = programs.find(program.name)
    if not path:
        text, older = f"not found; it {program.use}", programs.find("singularity")
        if program.name == "apptainer" and older:
            text = f"not found; {older} is installed, but is not used"
        return _item(program, text, "", program.remedy)
    if not program.arguments:
        return _item(program, "", path)
    done = programs.ask(path, *program.arguments)
    if isinstance(done, str):
        return _item(program, f"does not run: {done}", path, program.idle)
    return _docker(program, done, path) if program.name == "docker" else _read(program, done, path)


def _read(program: HostProgram, done: Completed, path: str) -> Item:
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


def _docker(program: HostProgram, done: Completed, path: str) -> Item:
    """Return the item of Docker's client, which is usable only if its daemon answers."""
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


def _item(program: HostProgram, text: str, path: str, remedy: str = "", **data: object) -> Item:
    data = {"path": path, "version": "", **data}
    key, group = program.name, program.group
    return Item(key, group, key, text, remedy, optional=program.optional, data=data)


def program_items(asked: Sequence[HostProgram], items: Mapping[str, Item]) -> list[Item]:
    """Return the items of programs; a program that was not run has the version of its twin."""
    completed = dict(items)
    for program in asked:
        item, twin = items[program.name], items.get(program.twin)
        if item.ok and twin and twin.ok:
            version = str(twin.data["version"])
            data = {**item.data, "version": version}
            completed[program.name] = replace(item, text=version, data=data)
    return list(completed.values())
