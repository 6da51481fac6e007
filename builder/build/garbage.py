"""Unreferenced files in the store, and their removal.

The reference is the project at hand: its full matrix, in every flavour. A store can serve several
projects, so recently used files stay for the others. Source files stay while the lock of any
project that was built here names them.
"""

from __future__ import annotations

import datetime as dt
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build.at_work import projects
from builder.build.base_store import base_key
from builder.build.engines import VFS, Buildah, Tools
from builder.build.engines.storage import left_by_vfs, read_storage
from builder.build.mirror import find_mirror, mirror_of
from builder.build.native.tools import RECORD
from builder.build.planning import declared_of
from builder.build.records import Records, noted_engine, noted_engines, stage_states
from builder.build.site_store import STORE_HINT, place_of
from builder.build.workspace import remove
from builder.load.document import Faults
from builder.load.lock import read_lock
from builder.load.site import layers_of
from builder.model import PlannedImage
from builder.model.cells import base_tag
from builder.model.errors import BadInput, BuildImagesError, MissingPrerequisite, counted
from builder.model.inputs import LOCK as LOCK_FILE
from builder.sources.site_store import unused_entries
from builder.sources.site_store.places import RepositoryStore
from builder.system.files import read_json, remove_tree, unmount_below
from builder.system.home import Home
from builder.system.process import Processes

_DAY_S = 86400
UNUSED_FOR = 7  # days, if the user names none
_PASSING = ("verify-", "reproduce-", "layers-", "rehearsal-", "site-store-")  # folders of one run


@dataclass(frozen=True, kw_only=True, slots=True)
class Garbage:
    """One item in the store that nothing refers to.

    `kind` is base, stage, image, storage, work, source, package, native, pull, rehearsal, project
    or cluster.

    `bytes` is what its removal frees. Images share layers, so the first has the bytes of them all.
    """

    kind: str
    name: str
    bytes: int
    why: str
    paths: tuple[Path, ...] = ()
    image: str = ""


def garbage(
    tools: Tools,
    project: Path,
    images: Sequence[PlannedImage],
    *,
    unused_for: int,
    layers: bool = False,
) -> list[Garbage]:
    """Return the items that nothing refers to and that were not used for `unused_for` days.

    `images` are all images of the project; with `layers`, all layers of builds count as garbage.
    """
    home = tools.home
    now = time.time()
    since = now - unused_for * _DAY_S
    bases = list(_bases(home, images, since))
    built_since = now + _DAY_S if layers else since
    return [
        *bases,
        *_built(tools, [] if layers else images, bases, built_since),
        *_unused_storage(tools, built_since),
        *_work(home, images, since),
        *_sources(project, home, since),
        *_counted(home, since),
        *_native(home, since),
    ]


def garbage_of_site(
    project: Path, processes: Processes, *, unused_for: int | None, removes: bool
) -> list[Garbage]:
    """Return the entries of the site's store that were not used for `unused_for` days.

    With `removes`, remove them. Raises `BadInput` if the project has no site's store, and for a
    registry without `unused_for`.
    """
    place = place_of(project, processes)
    if place is None:
        raise BadInput("this project has no site's store", hint=STORE_HINT)
    if unused_for is None and isinstance(place, RepositoryStore):
        hint = "--unused-for DAYS names the age of the entries to remove; builders make them again"
        raise BadInput(f"{place.name}: a registry does not record when entries are used", hint=hint)
    now = dt.datetime.now(tz=dt.timezone.utc)
    entries = unused_entries(
        place, now - dt.timedelta(days=UNUSED_FOR if unused_for is None else unused_for)
    )
    if removes:
        place.remove([entry.tag for entry, _ in entries])
    return [
        Garbage(kind=entry.kind, name=entry.title, bytes=size, why=entry.why)
        for entry, size in entries
    ]


def _built(
    tools: Tools, images: Sequence[PlannedImage], bases: Sequence[Garbage], since: float
) -> Iterator[Garbage]:
    """Yield records of stages, and images that builds left in the engine's storage."""
    home = tools.home
    names = _base_names(home, bases) if images else set()
    names |= {name for image in images for name in (image.base_image, image.runtime_image)}
    declared = declared_of(images)
    keys = {
        state.stage.key
        for engine in (noted_engines(home) if images else ())
        if noted_engine(home, engine)
        for native in (True, False)
        for states in stage_states(home, engine, declared, native=native)
        for state in states
    }
    reason = "no stage of the project has its key" if images else "a later build makes it again"
    for path, record in Records(folder=home.stages).all():
        if record.key in keys or path.stat().st_mtime >= since:
            names.add(record.tag)
        else:
            name = f"{path.parent.name} {path.stem[:12]}"
            yield _files("stage", name, [path, path.with_suffix(".log")], reason)
    storage = read_storage(home.storage, Buildah(tools).driver.name)
    before = dt.datetime.fromtimestamp(since, tz=dt.timezone.utc).isoformat()
    unneeded = storage.garbage(names, before=before)
    freed = storage.bytes_of(unneeded)
    for image in unneeded:
        name = ", ".join(image.names) or f"step {image.id[:12]}"
        why = "no record names it" if image.names else "no image is made from it"
        target = " ".join(image.names) or image.id
        yield Garbage(kind="image", name=name, bytes=freed, why=why, image=target)
        freed = 0


def _unused_storage(tools: Tools, since: float) -> Iterator[Garbage]:
    """Yield the folders of another storage driver than the one in use."""
    driver = Buildah(tools).driver.name
    folders = left_by_vfs(tools.home.storage, driver)
    if folders and folders[0].stat().st_mtime < since:
        yield _files("storage", VFS, folders, f"the driver in use is {driver}")


def _bases(home: Home, images: Sequence[PlannedImage], since: float) -> Iterator[Garbage]:
    keyed = _base_folders(images)
    brought = {name.partition("@")[2] for image in images for name in image.registry_bases}
    for path in _unused(home.bases.glob("*/base.json"), since):
        folder, record = path.parent, read_json(path)
        if record.get("key") == "":  # from a registry
            if record.get("digest") not in brought:
                yield _files("base", folder.name, [folder], "no image of the project uses it")
        elif keyed is not None and folder.name not in keyed:
            yield _files("base", folder.name, [folder], "no base image of the project has its key")


def _base_folders(images: Sequence[PlannedImage]) -> set[str] | None:
    """Return the folders of bases that are made here; None if no mirror is known for their keys."""
    bases = {(one.base.name, one.cell.arch): one.base for one in images if one.is_bootstrapped}
    try:
        return {
            f"{name}-{arch}-{base_key(base, arch, mirror_of(base, find_mirror))[:12]}"
            for (name, arch), base in bases.items()
        }
    except MissingPrerequisite:
        return None


def _base_names(home: Home, gone: Sequence[Garbage]) -> set[str]:
    """Return the names of the bases that stay, in specs and in the engine."""
    folders = {path for base in gone for path in base.paths}
    paths = [path for path in home.bases.glob("*/base.json") if path.parent not in folders]
    return {
        name
        for record in map(read_json, paths)
        for name in (str(record.get("name", "")), base_tag(str(record.get("digest", ""))))
    }


def _work(home: Home, images: Sequence[PlannedImage], since: float) -> Iterator[Garbage]:
    """Yield unfinished work. Work of keys in the project stays: a later build continues it."""
    keys = {image.content_key[:16] for image in images}
    for folder in filter(_is_folder, home.work.glob("*")):
        if folder.name == "stages" or folder.name.startswith(_PASSING):
            if any(folder.iterdir()):
                yield _files("work", folder.name, [folder], "left by a build that was killed")
            continue
        for path in _unused(filter(_is_folder, folder.glob("*")), since):
            if path.name not in keys:
                name = f"{folder.name} {path.name[:12]}"
                yield _files("work", name, [path], "no image of the project has its key")


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _counted(home: Home, since: float) -> Iterator[Garbage]:
    """Yield one item for each kind of which there are thousands of files.

    Among them are the files from which `pull` resumes. Its record of the last pulls stays: with it,
    `pull` refuses an older image.
    """
    for kind, folder, pattern, noun, why in (
        ("package", home.packages, "*/*", "package", "no build downloaded it recently"),
        ("pull", home.pulls / "blobs", "[!.]*", "blob", "no pull used it recently"),
        # Earlier versions left lists of layers' files there.
        ("pull", home.pulls / "layers", "[!.]*", "note", "no pull used it recently"),
        ("rehearsal", home.rehearsals, "*.json", "record", "it is old"),
        ("project", home.projects, "[!.]*", "project", "no run on workers used it recently"),
        ("project", home.projects, ".*.partial", "project", "incomplete"),
        ("cluster", home.clusters, "*", "file", "it is of an old run on workers"),
    ):
        if old := [path for path in folder.glob(pattern) if path.stat().st_mtime < since]:
            yield _files(kind, counted(len(old), noun), sorted(old), why)


def _native(home: Home, since: float) -> Iterator[Garbage]:
    for record in _unused(home.native.glob(f"*/{RECORD}"), since):
        folder = record.parent
        yield _files("native", folder.name, [folder], "no build used it recently")


def _sources(project: Path, home: Home, since: float) -> Iterator[Garbage]:
    locked: set[str] = set()
    faults = Faults()
    for root in {project, *map(Path, projects(home))}:
        try:
            holders = layers_of(root, faults).holders(LOCK_FILE)
        except PermissionError:  # before Python 3.12; the lock may name any of them
            return
        for layer in holders:
            locked |= {source.sha256 for source in read_lock(layer, faults).sources.values()}
    if faults.found:
        return  # a lock that cannot be read, or of an absent layer, may name any of them
    for path in _unused((home.sources / "sha256").glob("*"), since):
        if path.name not in locked:
            yield _files("source", path.name[:12], [path], "no lock.yaml names it")
    for path in _unused(home.sources.glob(".*.partial"), since):
        yield _files("source", path.name, [path], "incomplete download")


def _unused(paths: Iterable[Path], since: float) -> list[Path]:
    """Return the paths not used since, sorted; links into the shared folder are left out."""
    own = (path for path in paths if not path.is_symlink() and not path.parent.is_symlink())
    return sorted(path for path in own if path.stat().st_mtime < since)


def _files(kind: str, name: str, paths: Iterable[Path], why: str) -> Garbage:
    present = tuple(path for path in paths if path.exists())
    return Garbage(kind=kind, name=name, bytes=sum(map(_bytes, present)), why=why, paths=present)


def _bytes(path: Path) -> int:
    """Return the bytes on disk that removing a file or a folder frees."""
    files = path.rglob("*") if path.is_dir() else [path]
    states = [file.lstat() for file in files]
    single = (state for state in states if stat.S_ISREG(state.st_mode) and state.st_nlink == 1)
    return sum(state.st_blocks * 512 for state in single)


def free(items: Sequence[Garbage], tools: Tools) -> None:
    """Remove garbage; raise `BuildImagesError` at the end for items that could not be removed."""
    failures: list[str] = []
    for item in items:
        reasons = {path: _remove(path, tools) for path in item.paths}
        failures += [f"{path}: {reason}" for path, reason in reasons.items() if reason]
        if item.image:
            argv = Buildah(tools).command("rmi", *item.image.split())
            done = tools.processes.capture(argv, check=False)
            if done.returncode and "not known" not in done.stderr:  # removed with an earlier image
                reason = (done.stderr.splitlines() or ["no reason given"])[-1]
                failures.append(f"{item.name}: {reason}")
    if failures:
        count = f"{counted(len(failures), 'thing')} could not be removed; the rest was removed:"
        raise BuildImagesError("\n  ".join([count, *failures[:5]]))


def _remove(path: Path, tools: Tools) -> str:
    """Remove a file or a folder; return the reason if it cannot be removed, else empty.

    If a mount cannot be removed, the whole folder stays: files below the mount may not be the
    folder's own.
    """
    real = path.parent.resolve() / path.name  # a link is not followed
    if reason := unmount_below(real, tools.processes):
        return reason
    if _is_folder(path):
        remove_tree(path)
        return "parts of it could not be removed" if path.exists() else ""
    try:
        remove(path)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def as_text(items: Sequence[Garbage], *, freed: bool, command: str = "build-images gc") -> str:
    """Return a line for each part, and the total size."""
    if not items:
        return "nothing to free: everything in the store is in use or was used recently"
    width = max(len(item.name) for item in items)
    lines = [
        f"{item.kind:7} {item.name:{width}}  {item.bytes / 1e6:9.1f} MB  {item.why}"
        for item in items
    ]
    total = f"{sum(item.bytes for item in items) / 1e6:.1f} MB"
    count = counted(len(items), "part")
    if freed:
        return "\n".join([*lines, f"{count} removed, {total} freed"])
    return "\n".join([*lines, f"{count}, {total}; '{command} --free' removes them"])


def as_data(items: Sequence[Garbage], *, freed: bool) -> dict[str, object]:
    """Return the parts as JSON values."""
    keys = ("kind", "name", "bytes", "why")
    return {
        "schema": "build-images/gc/v1",
        "freed": freed,
        "bytes": sum(item.bytes for item in items),
        "garbage": [{key: getattr(item, key) for key in keys} for item in items],
    }
