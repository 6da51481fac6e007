"""What is in Buildah's storage, read from its own records: images, the layers that they share.

The files are those of https://github.com/containers/storage: `overlay-images/images.json` and
`overlay-layers/layers.json`, or with `vfs` for `overlay`. Drivers may lie beside each other.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.model.errors import BuildImagesError
from builder.model.exact_json import part
from builder.system.files import as_root_of_own, remove_tree
from builder.system.process import Processes


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImage:
    """An image: `layer` is its topmost layer. `created` is a time in UTC as ISO 8601.

    An image without names is a step that a later build may go on from.
    """

    id: str
    names: tuple[str, ...]
    layer: str
    created: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Images by id, and layers by id: the layer below, and bytes that are its own.

    With vfs each layer takes the bytes of those below it, too: it is `copied` from them.
    """

    images: Mapping[str, StoredImage]
    layers: Mapping[str, tuple[str, int]]
    copied: bool = False

    def chain(self, image: StoredImage) -> set[str]:
        """The layers that an image consists of."""
        found: set[str] = set()
        layer = image.layer
        while layer in self.layers and layer not in found:
            found.add(layer)
            layer = self.layers[layer][0]
        return found

    def garbage(self, kept: Iterable[str], *, before: str) -> list[StoredImage]:
        """The images that are needed for none of the `kept` names; the topmost ones first.

        What was made since `before` stays: steps of images that are being worked on.
        """
        names = set(kept)
        needed: set[str] = set()
        for image in self.images.values():
            if names & {*image.names} or image.created >= before:
                needed |= self.chain(image)
        unneeded = [
            one
            for one in self.images.values()
            if not names & {*one.names} and one.created < before and one.layer not in needed
        ]
        return sorted(unneeded, key=lambda one: -len(self.chain(one)))

    def bytes_of(self, images: Iterable[StoredImage]) -> int:
        """The bytes that are free when these images are gone: other images keep their layers."""
        gone = {one.id for one in images}
        stay: set[str] = set()
        leave: set[str] = set()
        for image in self.images.values():
            (leave if image.id in gone else stay).update(self.chain(image))
        return sum(map(self._bytes, leave - stay))

    def _bytes(self, layer: str) -> int:
        below, own = self.layers[layer]
        return own + (self._bytes(below) if self.copied and below in self.layers else 0)


def read_storage(folder: Path, driver: str) -> Storage:
    """What a storage holds by a driver; nothing, where there is none."""
    images: dict[str, StoredImage] = {}
    layers: dict[str, tuple[str, int]] = {}
    for one in _list(folder / f"{driver}-images/images.json"):
        names = tuple(part(one, "names") or ())
        created, layer = str(one.get("created", "")), str(one.get("layer", ""))
        number = str(one["id"])
        images[number] = StoredImage(id=number, names=names, layer=layer, created=created)
    for one in _list(folder / f"{driver}-layers/layers.json"):
        size = int(str(one.get("diff-size") or 0))
        layers[str(one["id"])] = (str(one.get("parent", "")), size)
    return Storage(images=images, layers=layers, copied=driver == VFS)


def left_by_vfs(folder: Path, driver: str) -> list[Path]:
    """The folders that vfs has left in a storage whose driver is overlay now, the records first.

    The other way round nothing is left: overlay may work again, or on another host.
    """
    folders = [folder / f"{VFS}-images", folder / f"{VFS}-layers", folder / VFS]
    return [path for path in folders if path.is_dir()] if driver != VFS else []


def _list(path: Path) -> list[dict[str, object]]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    return [one for one in found if isinstance(one, dict) and "id" in one]


OVERLAY, VFS = "overlay", "vfs"
VARIABLE = "STORAGE_DRIVER"  # that of containers-storage, which Buildah follows, too
_FUSE = "fuse-overlayfs"
_LAYERS = "lowerdir=lower,upperdir=upper,workdir=work"
# A file of a lower layer is removed, which takes more than mounting does.
_TRY = (
    'cd "$0" && mkdir lower upper work merged && : >lower/file && "$@" merged && '
    "rm merged/file && mkdir merged/folder && umount merged"
)
_TIMEOUT_S = 20.0
# What one image takes at most, while it is built and packed: `hpc-base` takes 1.3 GB of a storage
# with overlay, and 8.3 GB with vfs.
_NEEDED_BYTES = 3 << 30
_NEEDED_BY_VFS = 12 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """A storage driver. `program` mounts where the kernel does not.

    `why` says why it is not overlay. `options` are Buildah's and Podman's.
    """

    name: str
    program: str = ""
    why: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        mounting = (
            (f"--storage-opt={OVERLAY}.mount_program={self.program}",) if self.program else ()
        )
        return (f"--storage-driver={self.name}", *mounting)

    @property
    def title(self) -> str:
        """`overlay`, `overlay by fuse-overlayfs`, `vfs`."""
        return f"{self.name} by {Path(self.program).name}" if self.program else self.name


def needed_bytes(driver: Driver) -> int:
    """The bytes that one image takes at most, while it is built and packed."""
    return _NEEDED_BY_VFS if driver.name == VFS else _NEEDED_BYTES


def driver_of(folder: Path, search_path: str) -> Driver:
    """The driver for a storage in `folder`, which exists; it is tried there once in a run."""
    if named := os.environ.get(VARIABLE):
        return Driver(name=named, why=f"${VARIABLE} asks for it")
    return tried(folder, search_path)


@functools.lru_cache
def tried(folder: Path, search_path: str) -> Driver:
    """The first driver that works in a folder."""
    reasons: list[str] = []
    for program, mount in _ways(search_path):
        if reason := _refusal(folder, mount):
            reasons.append(f"{mount[0]}: {reason}")
        else:
            return Driver(name=OVERLAY, program=program)
    if not shutil.which(_FUSE, path=search_path):
        reasons.append(f"{_FUSE}: not found")
    return Driver(name=VFS, why=f"overlay does not work there: {'; '.join(reasons)}")


def _ways(search_path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Ways to mount an overlay: the program that Buildah is to use, and a command that tries it."""
    own = "" if os.geteuid() == 0 else "userxattr,"
    yield "", ("mount", "-t", "overlay", "overlay", "-o", own + _LAYERS)
    if program := shutil.which(_FUSE, path=search_path):
        yield program, (_FUSE, "-o", _LAYERS)


def _refusal(folder: Path, mount: tuple[str, ...]) -> str:
    """Why an overlay cannot be mounted in a folder; empty if it can."""
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix=".overlay-"))
    try:
        argv = [*as_root_of_own(), "sh", "-c", _TRY, str(scratch), *mount]
        done = Processes().capture(argv, check=False, timeout_s=_TIMEOUT_S)
    except BuildImagesError as error:
        return str(error).splitlines()[0]
    finally:
        remove_tree(scratch)
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[0].removeprefix("mount: ") if done.returncode else ""
