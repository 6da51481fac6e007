"""Buildah's storage: its drivers, a trial of it, and its records of images and layers.

The driver is overlay if it works, else vfs, which copies every layer in full. By default, Buildah
uses vfs for an ordinary user unless a configuration names another driver. A trial in the storage's
file system shows which driver works: kernels before 5.11 mount no overlay for ordinary users, and
file systems such as NFS cannot hold the upper layer of an overlay.
https://docs.kernel.org/filesystems/overlayfs.html

The records are those of https://github.com/containers/storage: `overlay-images/images.json` and
`overlay-layers/layers.json`, or with `vfs` for `overlay`. One storage may have both.
"""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts import oci
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import BuildImagesError, shortened
from builder.model.exact_json import part
from builder.system.files import as_root_of_own, remove_tree
from builder.system.process import Processes
from builder.system.storage_drivers import OVERLAY, VFS, Driver, StorageTrial

VARIABLE = "STORAGE_DRIVER"  # of containers-storage; Buildah reads it, too
_FUSE = "fuse-overlayfs"
_LAYERS = "lowerdir=lower,upperdir=upper,workdir=work"
# The trial also removes a file of a lower layer, which can fail although mounting works.
_TRY = (
    'cd "$0" && mkdir lower upper work merged && : >lower/file && "$@" merged && '
    "rm merged/file && mkdir merged/folder && umount merged"
)
_TIMEOUT_S = 20.0
_TRIAL_TIMEOUT_S = 60.0


def driver_of(folder: Path, search_path: str) -> Driver:
    """Return the driver for a storage in an existing `folder`; test it once in a run."""
    if named := os.environ.get(VARIABLE):
        return Driver(name=named, why=f"set by ${VARIABLE}")
    return usable_driver(folder, search_path)


@functools.lru_cache
def usable_driver(folder: Path, search_path: str) -> Driver:
    """Return the first driver that works in a folder."""
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
    """Yield ways to mount an overlay: the program for Buildah, and a command that tests it."""
    own = "" if os.geteuid() == 0 else "userxattr,"
    yield "", ("mount", "-t", "overlay", "overlay", "-o", own + _LAYERS)
    if program := shutil.which(_FUSE, path=search_path):
        yield program, (_FUSE, "-o", _LAYERS)


def _refusal(folder: Path, mount: tuple[str, ...]) -> str:
    """Return the reason why an overlay cannot be mounted in a folder; empty if it can."""
    with _scratch(folder, ".overlay-") as scratch:
        argv = [*as_root_of_own(), "sh", "-c", _TRY, str(scratch), *mount]
        lines = _complaint(Processes(), argv, timeout_s=_TIMEOUT_S)
    return lines[0].removeprefix("mount: ") if lines else ""


def _complaint(
    processes: Processes,
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """Run a command; return the lines of its error if it fails, else none."""
    try:
        done = processes.capture(argv, env=env, check=False, timeout_s=timeout_s)
    except (BuildImagesError, OSError) as error:
        return str(error).splitlines()[:1]
    if done.timed_out:
        return [f"no answer within {timeout_s:.0f} s"]
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines if done.returncode else []


@contextmanager
def _scratch(folder: Path, prefix: str) -> Iterator[Path]:
    """Make a folder in another; it is removed afterwards with what is mounted in it."""
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix=prefix))
    try:
        yield scratch
    finally:
        remove_tree(scratch)


# Names, modes and owners: a setuid program, and an owner that takes subordinate ids to set.
_MEMBERS = (("bin", 0o755, 0), ("bin/sh", 0o4755, 0), ("file", 0o600, 65534))


def try_storage(folder: Path, *, arch: str, search_path: str, processes: Processes) -> StorageTrial:
    """Unpack a layer of a few files in a new storage in `folder`, which is then removed."""
    driver, start = driver_of(folder, search_path), time.monotonic()
    with _scratch(folder, ".trial-") as scratch:
        archive = _small_image(scratch, arch)
        command = [
            *("buildah", f"--root={scratch}/storage", f"--runroot={scratch}/run"),
            *driver.options,
            *("pull", "--quiet", f"oci-archive:{archive}"),
        ]
        # Mounts of root's storage vanish with the namespace.
        argv = [*(as_root_of_own() if os.geteuid() == 0 else ()), *command]
        env = {"PATH": search_path, "TMPDIR": str(scratch)}
        lines = _complaint(processes, argv, timeout_s=_TRIAL_TIMEOUT_S, env=env)
    problem = shortened(lines[-1], 120) if lines else ""
    return StorageTrial(driver=driver, problem=problem, seconds=time.monotonic() - start)


def _small_image(folder: Path, arch: str) -> Path:
    """Return the tar of a small image."""
    rootfs, archive = folder / "rootfs.tar", folder / "image.tar"
    with tarfile.open(rootfs, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, mode, owner in _MEMBERS:
            member = tarfile.TarInfo(name)
            member.mode, member.uid, member.gid = mode, owner, owner
            member.type = tarfile.DIRTYPE if name == "bin" else tarfile.REGTYPE
            tar.addfile(member, io.BytesIO())
    name = ARCHITECTURES[arch].oci
    oci.write_archive(rootfs, archive, architecture=name, environment={}, name="trial")
    return archive


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImage:
    """An image: `layer` is its topmost layer. `created` is a time in UTC as ISO 8601.

    An image without names is a step from which a later build may continue.
    """

    id: str
    names: tuple[str, ...]
    layer: str
    created: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Images by id, and layers by id: the id of the layer below, and the layer's own bytes.

    With vfs, each layer also takes the bytes of the layers below, which are `copied` into it.
    """

    images: Mapping[str, StoredImage]
    layers: Mapping[str, tuple[str, int]]
    copied: bool = False

    def chain(self, image: StoredImage) -> set[str]:
        """Return the layers that an image consists of."""
        chain: set[str] = set()
        layer = image.layer
        while layer in self.layers and layer not in chain:
            chain.add(layer)
            layer = self.layers[layer][0]
        return chain

    def garbage(self, retained: Iterable[str], *, before: str) -> list[StoredImage]:
        """Return the images that no `retained` name needs, the topmost ones first.

        Images made since `before` stay: they may be steps of an image that is being built.
        """
        names = set(retained)
        needed: set[str] = set()
        for image in self.images.values():
            if names & {*image.names} or image.created >= before:
                needed |= self.chain(image)
        unneeded = [
            image
            for image in self.images.values()
            if not names & {*image.names} and image.created < before and image.layer not in needed
        ]
        return sorted(unneeded, key=lambda image: -len(self.chain(image)))

    def bytes_of(self, images: Iterable[StoredImage]) -> int:
        """Return the bytes that removing these images frees; layers of other images stay."""
        gone = {image.id: self.chain(image) for image in images}
        others = [self.chain(image) for image in self.images.values() if image.id not in gone]
        return sum(map(self._bytes, set().union(*gone.values()) - set().union(*others)))

    def _bytes(self, layer: str) -> int:
        below, own = self.layers[layer]
        return own + (self._bytes(below) if self.copied and below in self.layers else 0)


def read_storage(folder: Path, driver: str) -> Storage:
    """Return a driver's images and layers in a storage; none if there is no storage."""
    images = {
        str(entry["id"]): StoredImage(
            id=str(entry["id"]),
            names=tuple(part(entry, "names") or ()),
            layer=str(entry.get("layer", "")),
            created=str(entry.get("created", "")),
        )
        for entry in _list(folder / f"{driver}-images/images.json")
    }
    layers = {
        str(entry["id"]): (str(entry.get("parent", "")), int(str(entry.get("diff-size") or 0)))
        for entry in _list(folder / f"{driver}-layers/layers.json")
    }
    return Storage(images=images, layers=layers, copied=driver == VFS)


def left_by_vfs(folder: Path, driver: str) -> list[Path]:
    """Return the folders that vfs left in a storage that now uses overlay, records first.

    Folders of overlay are not left over: overlay may work again, or on another host.
    """
    folders = [folder / f"{VFS}-images", folder / f"{VFS}-layers", folder / VFS]
    return [path for path in folders if path.is_dir()] if driver != VFS else []


def _list(path: Path) -> list[dict[str, object]]:
    try:
        entries = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    return [entry for entry in entries if isinstance(entry, dict) and "id" in entry]
