"""What nothing in the store refers to any more, and its removal.

What counts is the project at hand: all of its matrix, in every flavour. A store can serve several
projects, so what another one may use stays for as long as it was used lately; source files stay
while the lock of any project that was built here names them.
"""

from __future__ import annotations

import datetime as dt
import json
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build.at_work import projects
from builder.build.base_store import base_key
from builder.build.engines import VFS, Buildah, Tools
from builder.build.engines.storage import StoredImage, left_by_vfs, read_storage
from builder.build.mirror import find_mirror
from builder.build.native import RECORD
from builder.build.records import Records, noted_engine, noted_engines, stage_states
from builder.build.workspace import remove
from builder.compile.spec import COMPILER
from builder.load.faults import Faults
from builder.load.lock import read_lock
from builder.model import PlannedImage
from builder.model.cells import base_tag
from builder.model.errors import BuildImagesError, MissingPrerequisite, counted
from builder.model.inputs import LOCK as LOCK_FILE
from builder.plan.keys import StageKeys
from builder.system.files import mounted_below, remove_tree
from builder.system.home import Home

_DAY_S = 86400
_PASSING = ("verify-", "reproduce-", "layers-", "rehearsal-")  # folders of one run


@dataclass(frozen=True, kw_only=True, slots=True)
class Garbage:
    """One thing that nothing refers to.

    `kind` is base, stage, image, storage, work, source, package, native, pull or rehearsal.

    `bytes` is what its removal frees; of images it stands with the first, since they share layers.
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
    """Return all that nothing refers to, and that was not used for so many days.

    `images` are all of the project; with `layers`, all layers of builds count as garbage.
    """
    home = tools.home
    since = time.time() - unused_for * _DAY_S
    bases = list(_bases(home, images, since))
    return [
        *bases,
        *(_all_built(tools) if layers else _built(tools, images, bases, since)),
        *_unused_storage(tools, time.time() + _DAY_S if layers else since),
        *_work(home, images, since),
        *_sources(project, home, since),
        *_packages(home, since),
        *_native(home, since),
        *_pulls(home, since),
        *_rehearsals(home, since),
    ]


def _built(
    tools: Tools,
    images: Sequence[PlannedImage],
    bases: Sequence[Garbage],
    since: float,
) -> Iterator[Garbage]:
    """What builds left in the engine's storage."""
    home, driver = tools.home, Buildah(tools).driver.name
    stages, kept = _stages(home, images, since)
    yield from stages
    kept |= _base_names(home, bases)
    kept |= {name for image in images for name in (image.base_image, image.runtime_image)}
    yield from _images(home, driver, kept, since)


def _all_built(tools: Tools) -> Iterator[Garbage]:
    """All that builds left there, whatever is made of it."""
    yield from _all_stages(tools.home)
    yield from _images(tools.home, Buildah(tools).driver.name, (), time.time() + _DAY_S)


def _unused_storage(tools: Tools, since: float) -> Iterator[Garbage]:
    """The folders of another storage driver than the one in use."""
    driver = Buildah(tools).driver.name
    folders = left_by_vfs(tools.home.storage, driver)
    if folders and folders[0].stat().st_mtime < since:
        yield _files("storage", VFS, folders, f"the driver in use is {driver}")


def _all_stages(home: Home) -> Iterator[Garbage]:
    for path, _ in Records(folder=home.stages).all():
        name = f"{path.parent.name} {path.stem[:12]}"
        yield _files(
            "stage", name, [path, path.with_suffix(".log")], "a later build makes it again"
        )


def _bases(home: Home, images: Sequence[PlannedImage], since: float) -> Iterator[Garbage]:
    made = _made_bases(images)
    brought = {name.partition("@")[2] for image in images for name in image.registry_bases}
    for path in _base_records(home):
        folder, record = path.parent, _read(path)
        if path.stat().st_mtime >= since or folder.is_symlink():  # others share it
            continue
        if record.get("key") == "":  # of a registry
            if record.get("digest") not in brought:
                yield _files("base", folder.name, [folder], "no image of the project is made of it")
        elif made is not None and folder.name not in made:
            yield _files("base", folder.name, [folder], "no base image of the project has its key")


def _made_bases(images: Sequence[PlannedImage]) -> set[str] | None:
    """The folders of bases that are made here; None if no base can be told from another."""
    try:
        mirror = find_mirror()
    except MissingPrerequisite:
        return None
    named = {(one.base.name, one.cell.arch): one for one in images if one.is_bootstrapped}
    return {
        f"{base}-{arch}-{base_key(one.base, arch, mirror)[:12]}"
        for (base, arch), one in named.items()
    }


def _base_names(home: Home, gone: Sequence[Garbage]) -> set[str]:
    """What specs call the bases that stay, and so the engine."""
    folders = {path for one in gone for path in one.paths}
    records = [path for path in _base_records(home) if path.parent not in folders]
    found = [_read(path) for path in records]
    return {
        name
        for one in found
        for name in (str(one.get("name", "")), base_tag(str(one.get("digest", ""))))
    }


def _base_records(home: Home) -> list[Path]:
    return sorted(home.bases.glob("*/base.json"))


def _stages(
    home: Home, images: Sequence[PlannedImage], since: float
) -> tuple[list[Garbage], set[str]]:
    """The records of stages that are of no use, and the tags of all others."""
    keys = StageKeys(COMPILER)
    declared = [keys.of(image) for image in images]
    wanted = {
        state.stage.key
        for engine in noted_engines(home)
        if noted_engine(home, engine)
        for native in (True, False)
        for states in stage_states(home, engine, declared, native=native)
        for state in states
    }
    found: list[Garbage] = []
    kept: set[str] = set()
    for path, record in Records(folder=home.stages).all():
        if record.key in wanted or path.stat().st_mtime >= since:
            kept.add(record.tag)
        else:
            name = f"{path.parent.name} {path.stem[:12]}"
            paths = [path, path.with_suffix(".log")]
            found.append(_files("stage", name, paths, "no stage of the project has its key"))
    return found, kept


def _images(home: Home, driver: str, kept: Iterable[str], since: float) -> Iterator[Garbage]:
    storage = read_storage(home.storage, driver)
    before = dt.datetime.fromtimestamp(since, tz=dt.timezone.utc).isoformat()
    images = storage.garbage(kept, before=before)
    freed = storage.bytes_of(images)
    for one in images:
        name = ", ".join(one.names) or f"step {one.id[:12]}"
        why = "no record names it" if one.names else "no image is made from it"
        yield Garbage(kind="image", name=name, bytes=freed, why=why, image=_target(one))
        freed = 0


def _target(image: StoredImage) -> str:
    return " ".join(image.names) or image.id


def _work(home: Home, images: Sequence[PlannedImage], since: float) -> Iterator[Garbage]:
    """Half-made things: of a present key they are gone on with, whenever that is."""
    wanted = {image.content_key[:16] for image in images}
    folders = [one for one in home.work.glob("*") if _is_folder(one)]
    for folder in folders:
        if folder.name == "stages" or folder.name.startswith(_PASSING):
            if not any(folder.iterdir()):
                continue
            yield _files("work", folder.name, [folder], "left by a build that was ended")
            continue
        for one in sorted(folder.glob("*")):
            if one.name not in wanted and _is_folder(one) and one.stat().st_mtime < since:
                name = f"{folder.name} {one.name[:12]}"
                yield _files("work", name, [one], "no image of the project has its key")


def _is_folder(path: Path) -> bool:
    """Return whether something is a folder itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def _packages(home: Home, since: float) -> Iterator[Garbage]:
    """Downloaded packages that no build took lately, as one thing: there are thousands."""
    old = [one for one in home.packages.glob("*/*") if one.stat().st_mtime < since]
    if old:
        name = counted(len(old), "package")
        yield _files("package", name, sorted(old), "no build downloaded it lately")


def _native(home: Home, since: float) -> Iterator[Garbage]:
    for record in sorted(home.native.glob(f"*/{RECORD}")):
        folder = record.parent
        if record.stat().st_mtime < since and not folder.is_symlink():
            yield _files("native", folder.name, [folder], "no build was lent it lately")


def _pulls(home: Home, since: float) -> Iterator[Garbage]:
    """What `pull` keeps to go on with. Its record of the last pulls stays: it is what refuses
    an older image.
    """
    for folder, what in (("blobs", "blob"), ("layers", "note")):
        old = [one for one in (home.pulls / folder).glob("[!.]*") if one.stat().st_mtime < since]
        if old:
            yield _files("pull", counted(len(old), what), sorted(old), "no pull took it lately")


def _rehearsals(home: Home, since: float) -> Iterator[Garbage]:
    old = [record for record in home.rehearsals.glob("*.json") if record.stat().st_mtime < since]
    if old:
        yield _files("rehearsal", counted(len(old), "record"), sorted(old), "it was long ago")


def _sources(project: Path, home: Home, since: float) -> Iterator[Garbage]:
    named: set[str] = set()
    faults = Faults()
    for root in {project, *map(Path, projects(home))}:
        try:
            is_locked = (root / LOCK_FILE).exists()
        except PermissionError:  # before Python 3.12; it may name any of them
            return
        if is_locked:
            named |= {one.sha256 for one in read_lock(root, faults).sources.values()}
    if faults.found:
        return  # a lock that cannot be read may name any of them
    for path in sorted((home.sources / "sha256").glob("*")):
        if path.name in named or path.is_symlink():
            continue
        if path.stat().st_mtime < since:
            yield _files("source", path.name[:12], [path], "no lock names it")
    for path in sorted(home.sources.glob(".*.partial")):
        if path.stat().st_mtime < since:
            yield _files("source", path.name, [path], "fetched in part")


def _files(kind: str, name: str, paths: Iterable[Path], why: str) -> Garbage:
    there = tuple(path for path in paths if path.exists())
    return Garbage(kind=kind, name=name, bytes=sum(map(_bytes, there)), why=why, paths=there)


def _bytes(path: Path) -> int:
    """Bytes on disk that are free when a file, or all of a folder, is gone."""
    files = path.rglob("*") if path.is_dir() else [path]
    found = [one.lstat() for one in files]
    single = (one for one in found if stat.S_ISREG(one.st_mode) and one.st_nlink == 1)
    return sum(one.st_blocks * 512 for one in single)


def free(found: Sequence[Garbage], tools: Tools) -> None:
    """Remove garbage; raises `BuildImagesError` at the end, with what could not be removed."""
    kept: list[str] = []
    for one in found:
        reasons = {path: _removed(path, tools) for path in one.paths}
        kept += [f"{path}: {why}" for path, why in reasons.items() if why]
        if one.image:
            argv = Buildah(tools).command("rmi", *one.image.split())
            done = tools.processes.capture(argv, check=False)
            if done.returncode and "not known" not in done.stderr:  # gone with the one before it
                kept.append(f"{one.name}: {(done.stderr.splitlines() or ['no reason given'])[-1]}")
    if kept:
        raise BuildImagesError(
            f"{counted(len(kept), 'thing')} could not be removed; all else was:\n  "
            + "\n  ".join(kept[:5]),
        )


def _removed(path: Path, tools: Tools) -> str:
    """Why a file or a folder could not be removed, or nothing.

    The store of a build that was killed is mounted still. With what cannot be unmounted all stays:
    below a mount there may be other files than the folder's.
    """
    for target in mounted_below(path.parent.resolve() / path.name):  # a link is no mount of ours
        done = tools.processes.capture(["umount", target], check=False)
        if done.returncode:
            return (done.stderr.splitlines() or [f"umount {target} failed"])[-1]
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
        return "something in it stays" if path.exists() else ""
    try:
        remove(path)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _read(path: Path) -> Mapping[str, object]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
