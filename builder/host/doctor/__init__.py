"""What this machine has, and what it can therefore build, run and verify."""

from __future__ import annotations

import os
import platform
import pwd
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from builder.build.engines.storage import OVERLAY, Driver
from builder.build.engines.trial import StorageTrial, try_storage
from builder.host.doctor import host
from builder.host.doctor.abilities import abilities_of, lacking_for, require
from builder.host.doctor.diagnosis import Ability, Diagnosis, Item, Roots, indexed
from builder.host.doctor.emulation import lends, runs
from builder.host.doctor.folders import FOLDERS, Trial, folder_items, standing
from builder.host.doctor.programs import PROGRAMS, asked, with_twins
from builder.host.doctor.render import as_json, as_text
from builder.host.doctor.subids import FILES as ID_FILES
from builder.model.architectures import ARCHITECTURES
from builder.system.home import ORDINARY_USER
from builder.system.process import Processes

__all__ = [
    "FOLDERS",
    "Ability",
    "Diagnosis",
    "Item",
    "Roots",
    "as_json",
    "as_text",
    "examine",
    "lacking_for",
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
    stored: StorageTrial | None = None,
) -> Diagnosis:
    """Look at this machine. It takes as long as the slowest program takes to tell its version.

    The tools in `home` are found before those of `search_path`. `roots`, `arch` and `user` are
    this machine's and the caller's if they are not given, and a storage is tried in the home if
    that was not `stored` in before.
    """
    arch, user = arch or platform.machine(), user or _caller()
    roots = roots or Roots(caller={user: os.geteuid()})
    path = os.pathsep.join([str(home / "tools/bin"), search_path])
    as_root = user == "root"
    with ThreadPoolExecutor(1) as beside:
        trying = beside.submit(lambda: stored or _try_storage(processes, home, arch, path))
        programs, running = _answers(processes, arch=arch, search_path=path, roots=roots)
        stored = trying.result()
    rest = host.examined(
        user=ORDINARY_USER if as_root else user, as_root=as_root, search_path=path, roots=roots
    )
    trial = Trial(processes=processes, other=ORDINARY_USER if as_root else "", top=roots.top)
    explained = stored if as_root else _explained(stored, rest)
    folders = folder_items(home, trial, explained)
    items = indexed([*with_twins(indexed(programs)), *running, *rest, *folders])
    found = abilities_of(items, archs=_shown(running), as_root=as_root)
    return Diagnosis(arch=arch, user=user, items=items, abilities=found)


def _try_storage(processes: Processes, home: Path, arch: str, search_path: str) -> StorageTrial:
    """Try a storage where the builder's will be; it may be on another disk than the home."""
    place = standing(home / "storage")
    try:
        return try_storage(place, arch=arch, search_path=search_path, processes=processes)
    except OSError as error:
        problem = f"{place}: cannot be written to: {error.strerror or error}"
        return StorageTrial(driver=Driver(name=OVERLAY), problem=problem)


def _explained(stored: StorageTrial, items: Iterable[Item]) -> StorageTrial:
    """A trial that failed for want of sub-ids says so: Buildah tells of a layer's owners."""
    absent = [item.title for item in items if item.key in ID_FILES and not item.ok]
    if not (stored.problem and absent):
        return stored
    return replace(stored, problem=f"takes no layer without {' and '.join(absent)}")


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
            for one in ARCHITECTURES.values()
        ]
        lending = [
            item for one in ARCHITECTURES.values() for item in lends(one, host=arch, roots=roots)
        ]
        return [one.result() for one in programs], [*(one.result() for one in running), *lending]


def _shown(running: list[Item]) -> list[str]:
    """The architectures whose abilities are told: those that are wanted, and those that run."""
    archs = [item for item in running if item.key.startswith("run:")]
    return [item.title for item in archs if item.ok or not item.optional]
