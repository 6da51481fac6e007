"""Make a proven image in the requested format, in an empty folder; every byte is checked here."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from pathlib import Path

from builder.artifacts.oci import CONFIG, blob_path, read_layout, start_layout
from builder.artifacts.sif import is_sif as begins_as_sif
from builder.artifacts.tree import TreeEntry, comparable, is_allowed, tree_digest
from builder.build.engines import charliecloud
from builder.distribute.pull.cache import BlobStore, place
from builder.distribute.pull.folders import fault_of_owner
from builder.distribute.pull.layers import Unpacked, read, tree_of_layout, unpack
from builder.distribute.pull.members import Laid, shown
from builder.distribute.pull.receipts import NAME, PullReceipt, read_receipt, write_json
from builder.distribute.pull.remote_image import RemoteImage
from builder.distribute.pull.request import Judged
from builder.model.digests import digest_of_file, sha256_of_file
from builder.model.errors import BadInput, BuildImagesError, Refused
from builder.model.manifest import FILES
from builder.model.planned import environment_text
from builder.registry import MANIFEST
from builder.system.files import read_regular
from builder.system.threads import begun

NAMES = {**FILES, "directory": "rootfs"}


def environment_of(remote: RemoteImage) -> bytes:
    """Return the content of the file with an image's variables, a line each, for ch-run."""
    pairs = (text.partition("=") for text in remote.environment if "\n" not in text)
    text = environment_text({name: value for name, _, value in pairs})
    return text.encode(errors="backslashreplace")


@dataclass(frozen=True, kw_only=True, slots=True)
class FormatPacker:
    """Fetches the blobs of an image from its registry, and makes the requested format from them."""

    judged: Judged
    store: BlobStore

    def make(self, folder: Path) -> Unpacked | None:
        """Make the format in an empty folder; return its tree, or None if it was not read.

        Raises `Refused` for content that must not be accepted.
        """
        name = self.judged.request.format
        target = folder / NAMES[name]
        if name == "oci":
            return self._make_layout(target)
        if name == "directory":
            return self._make_directory(target)
        return self._make_file(target)

    @contextlib.contextmanager
    def _blobs(self) -> Iterator[Iterator[tuple[str, Path]]]:
        """Fetch the layers in threads; yield the digest and the blob of each, in order."""
        source, layers = self.judged.source, self.judged.remote.layers
        unique = {layer.digest: layer for layer in layers}
        with begun(partial(self.store.get, source), unique.values(), stop=source.stop) as futures:
            blobs = dict(zip(unique, futures, strict=True))
            yield ((layer.digest, blobs[layer.digest].result()) for layer in layers)

    def _read(self, digest: str, blob: Path) -> tuple[str, Iterator[Laid]]:
        return digest, read(blob, digest, self.judged.remote.diff_ids.get(digest, ""))

    def _make_directory(self, target: Path) -> Unpacked:
        target.mkdir()
        files = {charliecloud.ENVIRONMENT: environment_of(self.judged.remote)}
        with self._blobs() as blobs:
            layers = starmap(self._read, blobs)
            unpacked = unpack(layers, target, files=files, folders=charliecloud.FOLDERS)
        target.chmod(0o755)
        return unpacked

    def _make_layout(self, target: Path) -> Unpacked:
        remote = self.judged.remote
        if remote.config_descriptor.media_type != CONFIG:
            raise Refused(
                f"unknown configuration type: {shown(remote.config_descriptor.media_type)}"
            )
        start_layout(target)
        with self._blobs() as blobs:
            unpacked = unpack(self._placed_layers(target, blobs), None)
        for descriptor, content in (
            (remote.config_descriptor, remote.config),
            (remote.manifest, remote.content),
        ):
            blob_path(target, descriptor.digest).write_bytes(content)
        tag = self.judged.request.reference.tag
        entry = {
            "mediaType": MANIFEST,
            "digest": remote.manifest.digest,
            "size": remote.manifest.size,
            "annotations": {"org.opencontainers.image.ref.name": tag or "latest"},
        }
        (target / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        write_json(target / "index.json", {"schemaVersion": 2, "manifests": [entry]})
        for path in (target, *target.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)  # independent of the umask
        return unpacked

    def _placed_layers(
        self, layout: Path, blobs: Iterator[tuple[str, Path]]
    ) -> Iterator[tuple[str, Iterator[Laid]]]:
        """Put each layer's blob into the layout, then yield its members."""
        for digest, blob in blobs:
            path = blob_path(layout, digest)
            if not path.exists():
                place(blob, path)
            yield self._read(digest, blob)

    def _make_file(self, target: Path) -> Unpacked | None:
        artifact, unpacked = self.judged.artifact, None
        assert artifact is not None  # the rule `artifact` has passed
        is_sif = self.judged.request.format == "sif"
        with self.store.held(self.judged.source, artifact) as blob:
            if not is_sif:
                unpacked = unpack([self._read(artifact.digest, blob)], None)
            elif not begins_as_sif(blob):
                raise Refused(f"{artifact.digest}: the published file is not a SIF")
            # A blob with another link may be a layer of another output, which must stay unchanged.
            take = shutil.copyfile if blob.stat().st_nlink > 1 else shutil.move
            take(blob, target)
        target.chmod(0o755 if is_sif else 0o644)
        return unpacked


_ELSEWHERE = "name another folder with --output, or move this one away"
_BROKEN = (OSError, BuildImagesError, ValueError, LookupError, TypeError, AttributeError)


def existing_output(output: Path, judged: Judged) -> PullReceipt:
    """Return the receipt of an existing output if it is the judged image, and complete.

    No other user may be able to write to the folder, the receipt, the artifact or a file of a
    layout. The receipt is trusted only for the tree of a folder on disk, whose modes differ from
    the image's. Raises `BadInput` for other outputs, `Refused` for an output that was changed.
    """
    try:
        receipt = read_receipt(output)
    except ValueError:
        receipt = None
    if receipt is None:
        raise BadInput(f"{output} exists, and was not made by pull", hint=_ELSEWHERE)
    name = judged.request.format
    path = output / NAMES[name]
    for own in (output, output / NAME):
        _check_ours(own)
    for part, expected, actual in (
        ("the format", name, receipt.format),
        ("the image", judged.remote.image.digest, receipt.image.digest),
        (f"the {name}", judged.digest, receipt.digest),
    ):
        if actual != expected:
            shown = actual if actual and actual.isprintable() else "unknown"
            problem = f"{output} exists: {part} is {shown}, not {expected}"
            raise BadInput(problem, hint=_ELSEWHERE)
    for own in (path, *(path.rglob("*") if name == "oci" else ())):
        _check_ours(own)
    try:
        is_intact = _is_intact(path, judged, receipt)
    except _BROKEN:
        is_intact = False
    if not is_intact:
        hint = "move it away, and pull again"
        raise Refused(f"{path} has changed since it was pulled", hint=hint)
    return receipt


def _check_ours(path: Path) -> None:
    """Raise `Refused` unless a path is owned by this user, and only this user can write to it."""
    try:
        fault = fault_of_owner(path.lstat())
    except OSError as error:
        fault = f"was removed ({error.strerror})"
    if fault:
        raise Refused(f"{path} {fault}", hint=_ELSEWHERE)


def _is_intact(path: Path, judged: Judged, receipt: PullReceipt) -> bool:
    name, tree = judged.request.format, judged.judgement.tree
    if name == "oci":
        layout = read_layout(path)
        return layout.digest == judged.digest and tree_of_layout(layout) == tree
    if name == "sif":
        return digest_of_file(path) == judged.digest
    if receipt.tree != tree:
        return False
    if name == "charliecloud":
        return digest_of_file(path) == judged.digest
    file, environment = path / charliecloud.ENVIRONMENT, environment_of(judged.remote)
    return (
        file.parent.is_dir()
        and not file.parent.is_symlink()
        and read_regular(file, len(environment)) == environment
        and tree_on_disk(path) == receipt.on_disk
    )


def tree_on_disk(folder: Path) -> str:
    """Return the tree digest of a folder; raises `OSError` if a file cannot be read."""
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
        return TreeEntry(path=path, kind="link", mode=0o777, target=os.readlink(file))  # noqa: PTH115 - raw text
    if not stat.S_ISREG(status.st_mode):
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "pipe"
        return TreeEntry(path=path, kind=kind, mode=mode)
    inode = status.st_dev, status.st_ino
    if inode not in known:
        known[inode] = sha256_of_file(file)
    return TreeEntry(path=path, kind="file", mode=mode, size=status.st_size, content=known[inode])
