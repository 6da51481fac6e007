"""A proven image as what was asked for, in an empty folder: every byte checked by our own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from builder.artifacts.oci import CONFIG, blob_path, start_layout
from builder.artifacts.sif import is_sif
from builder.errors import Refused
from builder.pull.ahead import ahead
from builder.pull.contents import Contents, noted
from builder.pull.finding import Found
from builder.pull.members import shown
from builder.pull.receipts import write_json
from builder.pull.store import Store
from builder.pull.unpacking import Unpacked, unpack
from builder.registry import MANIFEST, Descriptor, Source

NAMES = {
    "oci": "image.oci",
    "sif": "image.sif",
    "charliecloud": "image.tar.gz",
    "directory": "rootfs",
}
ENVIRONMENT = "ch/environment"  # where ch-run --set-env looks
_MOUNT_POINTS = ("ch", "dev", "proc", "run", "sys", "tmp")
_AT_ONCE = 4  # blobs that are fetched
T = TypeVar("T")


def environment_of(found: Found) -> bytes:
    """The file with an image's variables, a line each."""
    text = "".join(f"{one}\n" for one in found.environment if "\n" not in one)
    return text.encode(errors="backslashreplace")


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """What was made: its digest, and its tree if that was read.

    `given` is the blob that was handed over, and that the store is to forget.
    """

    name: str
    digest: str
    unpacked: Unpacked | None = None
    given: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Packer:
    """Brings the blobs of an image from a registry, and makes one format of them."""

    registry: Source
    store: Store
    contents: Contents
    found: Found
    artifact: Descriptor | None
    tag: str = ""

    def make(self, artifact_format: str, folder: Path) -> Packed:
        """Make a format in an empty folder. Raises `Refused` for what must not be accepted."""
        target = folder / NAMES[artifact_format]
        if artifact_format == "oci":
            return self._layout(target)
        if artifact_format == "directory":
            return self._directory(target)
        return self._file(target, artifact_format)

    def _directory(self, target: Path) -> Packed:
        target.mkdir()
        with self._layers(self._fetch) as layers:
            unpacked = unpack(
                layers,
                target,
                files={ENVIRONMENT: environment_of(self.found)},
                folders=_MOUNT_POINTS,
            )
        target.chmod(0o755)
        return Packed(name=target.name, digest=self.found.image.digest, unpacked=unpacked)

    def _layout(self, target: Path) -> Packed:
        found = self.found
        if found.config_descriptor.media_type != CONFIG:
            raise Refused(
                f"{shown(found.config_descriptor.media_type)} is no image's configuration"
            )
        start_layout(target)
        with self._layers(self._fetch_and_note) as layers:
            unpacked = unpack(self._placed(layers, target), None, reader=noted)
        for descriptor, content in (
            (found.config_descriptor, found.config),
            (found.manifest, found.content),
        ):
            blob_path(target, descriptor.digest).write_bytes(content)
        named = {"org.opencontainers.image.ref.name": self.tag or "latest"}
        entry = {
            "mediaType": MANIFEST,
            "digest": found.manifest.digest,
            "size": found.manifest.size,
            "annotations": named,
        }
        (target / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        write_json(target / "index.json", {"schemaVersion": 2, "manifests": [entry]})
        for one in (target, *target.rglob("*")):
            one.chmod(0o755 if one.is_dir() else 0o644)  # whatever the umask: nobody else writes it
        return Packed(name=target.name, digest=found.image.digest, unpacked=unpacked)

    def _file(self, target: Path, artifact_format: str) -> Packed:
        assert self.artifact is not None  # the rule `artifact` has passed
        blob = self.store.get(self.registry, self.artifact)
        unpacked = None
        if artifact_format == "charliecloud":
            note = self.contents.note(blob, self.artifact.digest)
            unpacked = unpack([(note, self.artifact.digest)], None, reader=noted)
        elif not is_sif(blob):
            raise Refused(f"{self.artifact.digest}: what was published as a SIF is none")
        self.store.give(blob, target)
        target.chmod(0o755 if artifact_format == "sif" else 0o644)
        return Packed(name=target.name, digest=self.artifact.digest, unpacked=unpacked, given=blob)

    @contextmanager
    def _layers(self, bring: Callable[[Descriptor], T]) -> Iterator[Iterator[tuple[T, str]]]:
        """What is brought for each layer and its digest, the lowest first, each when it has come.

        The others come meanwhile.
        """
        layers = self.found.layers
        coming, end = ahead(bring, layers, threads=_AT_ONCE)
        try:
            yield (
                (future.result(), layer.digest)
                for layer, future in zip(layers, coming, strict=True)
            )
        except BaseException:
            self.registry.stop()
            end()
            raise

    def _fetch(self, layer: Descriptor) -> Path:
        return self.store.get(self.registry, layer)

    def _fetch_and_note(self, layer: Descriptor) -> tuple[Path, Path]:
        """A layer's blob, and the note on what is in it."""
        blob = self._fetch(layer)
        return blob, self.contents.note(blob, layer.digest)

    def _placed(
        self, layers: Iterator[tuple[tuple[Path, Path], str]], layout: Path
    ) -> Iterator[tuple[Path, str]]:
        """The notes on layers whose blobs are in the layout by then."""
        for (blob, note), digest in layers:
            shown = blob_path(layout, digest)
            if not shown.exists():
                self.store.place(blob, shown)
            yield note, digest
