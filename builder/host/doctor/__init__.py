"""Examine this machine, and find out what it can build, run and verify."""

from __future__ import annotations

import os
import platform
import pwd
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from builder.host.doctor.abilities import abilities_of, lacking_for, require
from builder.host.doctor.diagnosis import Ability, Diagnosis, Item, SystemRoots, as_json, as_text
from builder.host.doctor.emulation import emulation_item, native_tools_item
from builder.host.doctor.folders import FOLDERS, FolderTrial, folder_items, here_item, standing
from builder.host.doctor.machine import ID_FILES, machine_items
from builder.host.doctor.programs import Programs, host_programs, program_item, program_items
from builder.model.architectures import ARCHITECTURES
from builder.system.home import ORDINARY_USER
from builder.system.process import Processes
from builder.system.storage_drivers import OVERLAY, Driver, StorageTrial

__all__ = [
    "FOLDERS",
    "Ability",
    "Diagnosis",
    "Item",
    "SystemRoots",
    "as_json",
    "as_text",
    "examine",
    "lacking_for",
    "require",
]

# Tries a storage in a folder, for an architecture, with a search path.
StorageTest = Callable[..., StorageTrial]
# Arguments: architecture, host architecture, folder of binfmt handlers. Returns whether build steps
# of the architecture run the host's native tools; None if it has none for them.
LentTest = Callable[[str, str, Path], "bool | None"]
_WORKERS = 16  # threads, each of which waits for a program


def examine(
    processes: Processes,
    *,
    home: Path,
    search_path: str,
    try_storage: StorageTest,
    is_lent: LentTest,
    roots: SystemRoots | None = None,
    arch: str = "",
    user: str = "",
) -> Diagnosis:
    """Examine this machine; this takes as long as the slowest program needs to print its version.

    The tools in `home` take precedence over those in `search_path`. `roots`, `arch` and `user` are
    by default this machine's and the caller's. `try_storage` and `is_lent` come from the builder.
    """
    arch, user = arch or platform.machine(), user or _caller()
    roots = roots or SystemRoots(caller={user: os.geteuid()})
    path = os.pathsep.join([str(home / "tools/bin"), search_path])
    as_root, known = user == "root", ARCHITECTURES.values()
    looked_for, programs = host_programs(), Programs(processes, path)
    with ThreadPoolExecutor(_WORKERS) as pool:
        storage = pool.submit(_stored, try_storage, processes, home, arch, path)
        found_programs = pool.map(lambda program: program_item(program, programs), looked_for)
        emulated = pool.map(
            lambda other: emulation_item(other, host=arch, roots=roots, programs=programs), known
        )
        stored, emulation = storage.result(), list(emulated)
        asked = program_items(looked_for, {item.key: item for item in found_programs})
    runner = ORDINARY_USER if as_root else user
    rest = machine_items(user=runner, as_root=as_root, search_path=path, roots=roots)
    absent = [item.title for item in rest if item.key in ID_FILES and not item.ok]
    if stored.problem and absent and not as_root:  # Buildah's message only names a layer's owners
        stored = replace(stored, problem=f"cannot unpack a layer without {' and '.join(absent)}")
    trial = FolderTrial(processes=processes, other=ORDINARY_USER if as_root else "", top=roots.top)
    handlers = roots.proc / "sys/fs/binfmt_misc"
    native = [
        native_tools_item(each, is_open=is_open)
        for each in known
        if (is_open := is_lent(each.name, arch, handlers)) is not None
    ]
    folders = [here_item(), *folder_items(home, trial, stored)]
    items = {item.key: item for item in [*asked, *emulation, *native, *rest, *folders]}
    archs = [item.title for item in emulation if item.ok or not item.optional]
    abilities = abilities_of(items, archs=archs, as_root=as_root)
    return Diagnosis(arch=arch, user=user, items=items, abilities=abilities)


def _stored(
    try_storage: StorageTest, processes: Processes, home: Path, arch: str, search_path: str
) -> StorageTrial:
    """Try the storage in the folder for the builder's; its disk may differ from the home's."""
    folder = standing(home / "storage")
    try:
        return try_storage(folder, arch=arch, search_path=search_path, processes=processes)
    except OSError as error:
        problem = f"{folder}: cannot be written to: {error.strerror or error}"
        return StorageTrial(driver=Driver(name=OVERLAY), problem=problem)


def _caller() -> str:
    uid = os.geteuid()
    try:
        return "root" if uid == 0 else pwd.getpwuid(uid).pw_name
    except KeyError:  # a container may run as a user without an entry in passwd
        return str(uid)
