"""What this machine has, and what it can therefore build, run and verify."""

from __future__ import annotations

import os
import platform
import pwd
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from builder import facts
from builder.doctor import host
from builder.doctor.abilities import abilities_of, require
from builder.doctor.diagnosis import Ability, Diagnosis, Item, Roots, indexed
from builder.doctor.emulation import lends, runs
from builder.doctor.programs import PROGRAMS, asked, with_twins
from builder.doctor.render import as_json, as_text
from builder.home import ORDINARY_USER
from builder.process import Processes

__all__ = [
    "Ability",
    "Diagnosis",
    "Item",
    "Roots",
    "as_json",
    "as_text",
    "examine",
    "require",
]

_WORKERS = 16  # each waits for a program; together they take as long as the slowest


def examine(
    processes: Processes,
    *,
    home: Path,
    search_path: str,
    roots: Roots | None = None,
    arch: str = "",
    user: str = "",
) -> Diagnosis:
    """Look at this machine. It takes as long as the slowest program takes to tell its version.

    The tools in `home` are found before those of `search_path`. `roots`, `arch` and `user` are
    this machine's and the caller's if they are not given.
    """
    roots, arch = roots or Roots(), arch or platform.machine()
    user = user or _caller()
    path = os.pathsep.join([str(home / "tools/bin"), search_path])
    programs, running = _answers(processes, arch=arch, search_path=path, roots=roots)
    as_root = user == "root"
    rest = host.examined(
        user=ORDINARY_USER if as_root else user,
        as_root=as_root,
        home=home,
        search_path=path,
        roots=roots,
    )
    items = indexed([*with_twins(indexed(programs)), *running, *rest])
    found = abilities_of(items, archs=_shown(running), as_root=as_root)
    return Diagnosis(arch=arch, user=user, items=items, abilities=found)


def _caller() -> str:
    uid = os.geteuid()
    try:
        return "root" if uid == 0 else pwd.getpwuid(uid).pw_name
    except KeyError:  # a container may run as a user that it has no entry for
        return str(uid)


def _answers(
    processes: Processes, *, arch: str, search_path: str, roots: Roots
) -> tuple[list[Item], list[Item]]:
    """Ask all programs and all emulators at once."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        programs = [
            pool.submit(asked, one, processes=processes, search_path=search_path)
            for one in PROGRAMS
        ]
        running = [
            pool.submit(
                runs, one, host=arch, roots=roots, processes=processes, search_path=search_path
            )
            for one in facts.ARCHITECTURES.values()
        ]
        lending = [
            item
            for one in facts.ARCHITECTURES.values()
            for item in lends(one, host=arch, roots=roots)
        ]
        return [one.result() for one in programs], [*(one.result() for one in running), *lending]


def _shown(running: list[Item]) -> list[str]:
    """The architectures whose abilities are told: those that are wanted, and those that run."""
    archs = [item for item in running if item.key.startswith("run:")]
    return [item.title for item in archs if item.ok or not item.optional]
