"""Examine this machine, and find out what it can build, run and verify."""

from __future__ import annotations

import os
import platform
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from builder.host.doctor.diagnosis import Ability, Diagnosis, Item, SystemRoots, as_json, as_text
from builder.host.doctor.emulation import emulation_item, key_of, native_tools_item
from builder.host.doctor.folders import (
    FOLDERS,
    HOME,
    STORE,
    TEMPORARY,
    FolderTrial,
    folder_items,
    folder_problem,
    free_bytes,
    here_item,
    standing,
)
from builder.host.doctor.machine import ID_FILES, machine_items, range_item
from builder.host.doctor.programs import Programs, host_programs, program_item, program_items
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import MissingPrerequisite
from builder.system.home import ORDINARY_USER
from builder.system.process import Processes
from builder.system.storage_drivers import OVERLAY, Driver, StorageTrial

__all__ = [
    "FOLDERS",
    "Diagnosis",
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

FORMAT_TITLES = {"oci": "OCI layouts", "sif": "SIF images", "charliecloud": "Charliecloud tarballs"}
# The items that each ability needs, by their keys.
_ENGINES = {"buildah": ("buildah", "policy", STORE), "docker": ("docker", "skopeo", "policy")}
_WORK = (HOME, TEMPORARY)
_BASES = ("mmdebstrap", "keyring")
_PACK = {
    "oci": (),
    "sif": ("apptainer", "mksquashfs", "user", "reach", "userns", "subuid", "subgid"),
    "charliecloud": ("pigz",),
}
_RUN = {
    "oci": ("buildah", "policy", STORE),
    "sif": ("apptainer", "sqfs2tar", "user", "reach", "userns"),
    "charliecloud": ("ch-run", "pigz", "user", "reach", "userns"),
}
_ROOTLESS = ("userns", "newuidmap", "subuid", "subgid")
_RUNNERS = {
    "buildah": _RUN["oci"],
    "podman": ("podman", "policy"),
    "docker": ("docker", "skopeo", "policy"),
    "apptainer": _RUN["sif"],
    "charliecloud": _RUN["charliecloud"],
}
_AS_ROOT_INSIDE = frozenset({"buildah", "podman"})  # containers with a range of user ids


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


def abilities_of(
    items: Mapping[str, Item], *, archs: Sequence[str], as_root: bool
) -> tuple[Ability, ...]:
    """Return all abilities; those to build are for the engine of this machine."""
    engine = "docker" if items["docker"].ok and not items["buildah"].ok else "buildah"
    build = _build(engine, as_root)
    needs: dict[str, Sequence[str]] = {
        f"build {arch} images": (*build, key_of(arch)) for arch in archs
    }
    for name, title in FORMAT_TITLES.items():
        needs[f"pack {title}"] = build if name == "oci" else (*_PACK[name], *_WORK)
    for name, title in FORMAT_TITLES.items():
        for arch in archs:
            needs[f"run and verify {title} for {arch}"] = (*_RUN[name], key_of(arch), *_WORK)
    needs["GPU checks"] = ("gpu",)
    return tuple(
        Ability(title=title, missing=_missing(items, keys)) for title, keys in needs.items()
    )


def require(
    diagnosis: Diagnosis,
    *,
    archs: Sequence[str],
    formats: Iterable[str],
    engine: str,
    home: Path,
    out: Path,
    images: int = 1,
    bases: bool = True,
    lent: Sequence[str] = (),
) -> None:
    """Raise `MissingPrerequisite` with all that this machine lacks to build and verify images.

    `home` and `out` need space for so many `images` at a time. `bases` is true if a base must be
    bootstrapped: a base from a registry needs no mmdebstrap. `lent` are the architectures whose
    build steps run native tools, if the kernel's handler was registered by set-up.
    """
    needs = [*_build(engine, diagnosis.user == "root"), *map(key_of, archs)]
    needs = [key for key in needs if bases or key not in _BASES]
    if any(diagnosis.items[f"native:{arch}"].ok for arch in lent):
        needs.append("patchelf")
    for name in formats:
        needs += [*_PACK.get(name, (name,)), *_RUN.get(name, ())]
    lacking = [
        f"  {item.title}: {item.text}\n      {item.remedy}"
        for item in _missing(diagnosis.items, needs)
    ]
    folders = [(home, "BUILD_IMAGES_HOME")] if diagnosis.items[HOME].ok else []
    need = int(str(diagnosis.items[STORE].data["needed_bytes"]))
    lacking += _unusable([*folders, (out, "--output")], need * images)
    if lacking:
        count = "1 thing" if len(lacking) == 1 else f"{len(lacking)} things"
        lines = [f"this machine lacks {count} for this run; nothing was built.", *lacking]
        raise MissingPrerequisite(
            "\n".join(lines), hint="'build-images doctor' shows all that this machine has"
        )


def lacking_for(diagnosis: Diagnosis, runner: str, arch: str) -> tuple[Item, ...]:
    """Return all items that this machine lacks to run images of an architecture by a runner."""
    with_ids = runner in _AS_ROOT_INSIDE and diagnosis.user != "root"
    rootless = _ROOTLESS if with_ids else ()
    return _missing(diagnosis.items, (*rootless, *_RUNNERS[runner], key_of(arch)))


def lacking_ids(runner: str, roots: SystemRoots) -> Item | None:
    """Return the range of ids that a runner needs and this user lacks; None if none lacks."""
    user = _caller()
    if runner not in _AS_ROOT_INSIDE or user == "root":
        return None
    items = (range_item(name, user, roots) for name in ID_FILES)
    return next((item for item in items if not item.ok), None)


def _build(engine: str, as_root: bool) -> tuple[str, ...]:
    rootless = () if as_root else _ROOTLESS
    return (*_ENGINES.get(engine, (engine,)), *_BASES, *rootless, *_WORK)


def _missing(items: Mapping[str, Item], keys: Iterable[str]) -> tuple[Item, ...]:
    unknown = ("not known to this program", "choose another one")
    known = [
        items.get(key) or Item(key, "", key.removeprefix(key_of("")), *unknown)
        for key in dict.fromkeys(keys)
    ]
    return tuple(item for item in known if not item.ok)


def _unusable(folders: Iterable[tuple[Path, str]], need: int) -> list[str]:
    """Return the folders that are not writable or have too little space, one for each disk."""
    problems, disks = [], set()
    for folder, option in folders:
        if problem := folder_problem(folder):
            problems.append(f"  {folder}: {problem}\n      choose another one with {option}")
        disk, free = standing(folder).stat().st_dev, free_bytes(folder)
        if free < need and disk not in disks:
            text = f"{free / 1e9:.1f} GB free, but {need / 1e9:.1f} GB may be needed"
            remedy = f"make room, or choose another one with {option}"
            problems.append(f"  {folder}: {text}\n      {remedy}")
        disks.add(disk)
    return problems
