"""A proven image as what was asked for, in an empty folder: every byte checked by our own code."""

from __future__ import annotations

import functools
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts.oci import CONFIG, blob_path, read_layout, start_layout
from builder.artifacts.sif import is_sif
from builder.artifacts.tree import TreeEntry, comparable, is_allowed, tree_digest
from builder.distribute.pull.cache import FetchedLayer, PullCache, listed, place
from builder.distribute.pull.folders import is_own
from builder.distribute.pull.layers import Unpacked, read, tree_of_layout, unpack
from builder.distribute.pull.members import Laid, shown
from builder.distribute.pull.receipts import NAME, PullReceipt, read_receipt, write_json
from builder.distribute.pull.remote_image import RemoteImage
from builder.model.digests import sha256_of_file
from builder.model.errors import BadInput, BuildImagesError, Refused
from builder.model.planned import environment_text
from builder.registry import MANIFEST, Descriptor, Source
from builder.system.files import read_regular

NAMES = {
    "oci": "image.oci",
    "sif": "image.sif",
    "charliecloud": "image.tar.gz",
    "directory": "rootfs",
}
ENVIRONMENT = "ch/environment"  # where ch-run --set-env looks
_MOUNT_POINTS = ("ch", "dev", "proc", "run", "sys", "tmp")
_OF_LAYERS = ("oci", "directory")
LISTED = ("oci", "charliecloud")  # their layers are read, and not written out


def environment_of(remote: RemoteImage) -> bytes:
    """Return the file with an image's variables, a line each, as ch-run reads it."""
    pairs = (text.partition("=") for text in remote.environment if "\n" not in text)
    text = environment_text({name: value for name, _, value in pairs})
    return text.encode(errors="backslashreplace")


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A format of an image on disk: its digest, and its tree if that was read."""

    name: str
    digest: str
    unpacked: Unpacked | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatPacker:
    """Fetches the blobs of an image from a registry, and makes one format of them."""

    registry: Source
    cache: PullCache
    remote: RemoteImage
    artifact: Descriptor | None
    tag: str = ""

    def make(self, artifact_format: str, folder: Path) -> Packed:
        """Make a format in an empty folder. Raises `Refused` for what must not be accepted."""
        target = folder / NAMES[artifact_format]
        try:
            if artifact_format == "oci":
                return self._make_layout(target)
            if artifact_format == "directory":
                return self._make_directory(target)
            return self._make_file(target, artifact_format)
        except BaseException:
            self.registry.stop()
            self.cache.coming.forget(self.remote)
            raise

    def begin(self, artifact_format: str) -> None:
        """Begin to fetch the layers that a format will be made of."""
        if artifact_format in _OF_LAYERS:
            for name, work in self._fetches(artifact_format):
                self.cache.coming.ask(name, work, self.remote)

    def _layers(self, artifact_format: str) -> Iterator[FetchedLayer]:
        self.begin(artifact_format)
        for name, work in self._fetches(artifact_format):
            yield self.cache.coming.get(name, work, self.remote)

    def _fetches(self, artifact_format: str) -> Iterator[tuple[str, Callable[[], FetchedLayer]]]:
        """Yield for each layer the name by which images share it, and what fetches it."""
        is_listed = artifact_format in LISTED
        for layer in self.remote.layers:
            name = f"{layer.digest} {self._diff_id(layer.digest)}"
            yield name, functools.partial(self._fetch, layer, is_listed=is_listed)

    def _fetch(self, layer: Descriptor, *, is_listed: bool) -> FetchedLayer:
        blob = self.cache.store.get(self.registry, layer)
        members = self._list(blob, layer.digest) if is_listed else None
        return FetchedLayer(digest=layer.digest, blob=blob, members=members)

    def _list(self, blob: Path, digest: str) -> Path:
        assert self.cache.lists is not None  # whoever opens the cache knows the format
        check, diff_id = self.registry.check, self._diff_id(digest)
        return self.cache.lists.make(blob, digest, check, diff_id=diff_id)

    def _diff_id(self, digest: str) -> str:
        return self.remote.diff_ids.get(digest, "")

    def _make_directory(self, target: Path) -> Packed:
        target.mkdir()
        unpacked = unpack(
            (
                (layer.digest, read(layer.blob, layer.digest, self._diff_id(layer.digest)))
                for layer in self._layers("directory")
            ),
            target,
            files={ENVIRONMENT: environment_of(self.remote)},
            folders=_MOUNT_POINTS,
        )
        target.chmod(0o755)
        return Packed(name=target.name, digest=self.remote.image.digest, unpacked=unpacked)

    def _make_layout(self, target: Path) -> Packed:
        remote = self.remote
        if remote.config_descriptor.media_type != CONFIG:
            raise Refused(
                f"not an image's configuration: {shown(remote.config_descriptor.media_type)}"
            )
        start_layout(target)
        unpacked = unpack(self._placed_layers(target), None)
        for descriptor, content in (
            (remote.config_descriptor, remote.config),
            (remote.manifest, remote.content),
        ):
            blob_path(target, descriptor.digest).write_bytes(content)
        entry = {
            "mediaType": MANIFEST,
            "digest": remote.manifest.digest,
            "size": remote.manifest.size,
            "annotations": {"org.opencontainers.image.ref.name": self.tag or "latest"},
        }
        (target / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        write_json(target / "index.json", {"schemaVersion": 2, "manifests": [entry]})
        for path in (target, *target.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)  # whatever the umask, nobody else writes
        return Packed(name=target.name, digest=remote.image.digest, unpacked=unpacked)

    def _placed_layers(self, layout: Path) -> Iterator[tuple[str, Iterator[Laid]]]:
        """Yield the members of layers whose blobs are in the layout by then."""
        for layer in self._layers("oci"):
            path = blob_path(layout, layer.digest)
            if not path.exists():
                place(layer.blob, path)
            assert layer.members is not None  # it was asked for
            yield layer.digest, listed(layer.members)

    def _make_file(self, target: Path, artifact_format: str) -> Packed:
        assert self.artifact is not None  # the rule `artifact` has passed
        digest = self.artifact.digest
        unpacked = None
        with self.cache.store.held(self.registry, self.artifact) as blob:
            if artifact_format == "charliecloud":
                unpacked = unpack([(digest, listed(self._list(blob, digest)))], None)
            elif not is_sif(blob):
                raise Refused(f"{digest}: the published file is not a SIF")
            shutil.move(blob, target)
        target.chmod(0o755 if artifact_format == "sif" else 0o644)
        return Packed(name=target.name, digest=digest, unpacked=unpacked)


_ELSEWHERE = "name another folder with --output, or move this one away"
_BROKEN = (OSError, BuildImagesError, ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The output that a pull needs: `digest` is that of the image, or of its SIF or tarball.

    `tree` is the tree digest that the evidence names, `environment` the file of a folder.
    """

    format: str
    image: str
    digest: str
    tree: str
    environment: bytes


def existing_output(output: Path, expected: Expected) -> tuple[Path, PullReceipt]:
    """Return an output and its receipt, if it is the expected one and complete.

    To the folder, the receipt and the artifact nobody else may write; of a layout, to nothing in
    it. The receipt is believed only for the tree of a folder on disk, whose modes differ from the
    image's. Raises `BadInput` for what is something else, `Refused` for what was changed.
    """
    try:
        receipt = read_receipt(output)
    except ValueError:
        receipt = None
    if receipt is None:
        raise BadInput(f"{output} exists, and was not made by pull", hint=_ELSEWHERE)
    for path in (output, output / NAME):
        _ours(path)
    for part, wish, actual in (
        ("the format", expected.format, receipt.format),
        ("the image", expected.image, receipt.image.digest),
        (f"the {expected.format}", expected.digest, receipt.digest),
    ):
        if actual != wish:
            shown = actual if actual and actual.isprintable() else "not known"
            problem = f"{output} is there already: {part} is {shown}, not {wish}"
            raise BadInput(problem, hint=_ELSEWHERE)
    path = output / NAMES[expected.format]
    _ours(path)
    for file in path.rglob("*") if expected.format == "oci" else ():
        _ours(file)
    try:
        is_intact = _is_whole(path, expected, receipt)
    except _BROKEN:
        is_intact = False
    if not is_intact:
        raise Refused(
            f"{path} was changed since it was pulled",
            hint="move it away, and pull it again",
        )
    return path, receipt


def _ours(path: Path) -> None:
    """Raise `Refused` unless a path is this user's own, and nobody else may write to it."""
    try:
        status = path.lstat()
    except OSError as error:
        raise Refused(
            f"{path} is not there any more ({error.strerror})",
            hint="move the folder away, and pull it again",
        ) from error
    if stat.S_ISLNK(status.st_mode):
        problem = "is a link"
    elif status.st_uid != os.geteuid():
        problem = "belongs to somebody else, who could change it at any time"
    elif not is_own(status):
        problem = "can be written to by others, who could change it at any time"
    else:
        return
    raise Refused(f"{path} {problem}", hint=_ELSEWHERE)


def _is_whole(path: Path, expected: Expected, receipt: PullReceipt) -> bool:
    if expected.format == "oci":
        layout = read_layout(path)
        return (layout.digest, tree_of_layout(layout)) == (expected.digest, expected.tree)
    if expected.format != "directory":
        proven = expected.format == "sif" or receipt.tree == expected.tree
        return proven and f"sha256:{sha256_of_file(path)}" == expected.digest
    file = path / ENVIRONMENT
    return (
        receipt.tree == expected.tree
        and file.parent.is_dir()
        and not file.parent.is_symlink()
        and read_regular(file, len(expected.environment)) == expected.environment
        and tree_on_disk(path) == receipt.on_disk
    )


def tree_on_disk(folder: Path) -> str:
    """The tree digest of a folder; raises `OSError` where something cannot be read."""
    return tree_digest(comparable(_entries(folder)))


def _entries(folder: Path) -> Iterator[TreeEntry]:
    known: dict[tuple[int, int], str] = {}
    todo = [""]
    while todo:
        above = todo.pop()
        with os.scandir(folder / above) as entries:
            for entry in entries:
                path = f"{above}/{entry.name}" if above else entry.name
                if is_allowed(path):
                    continue
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    todo.append(path)
                yield _entry(folder / path, path, status, known)


def _entry(
    file: Path, path: str, status: os.stat_result, known: dict[tuple[int, int], str]
) -> TreeEntry:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return TreeEntry(path=path, kind="link", mode=0o777, target=os.readlink(file))  # noqa: PTH115 - as it is
    if not stat.S_ISREG(status.st_mode):
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "pipe"
        return TreeEntry(path=path, kind=kind, mode=mode)
    inode = status.st_dev, status.st_ino
    if inode not in known:
        known[inode] = sha256_of_file(file)
    return TreeEntry(path=path, kind="file", mode=mode, size=status.st_size, content=known[inode])
