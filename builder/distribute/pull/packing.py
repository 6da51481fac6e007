"""A proven image as what was asked for, in an empty folder: every byte checked by our own code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts.oci import CONFIG, blob_path, start_layout
from builder.artifacts.sif import is_sif
from builder.distribute.pull.ahead import Coming
from builder.distribute.pull.contents import Contents, noted
from builder.distribute.pull.finding import Found
from builder.distribute.pull.members import shown
from builder.distribute.pull.receipts import write_json
from builder.distribute.pull.store import Store
from builder.distribute.pull.unpacking import Unpacked, read, unpack
from builder.model.errors import Refused
from builder.registry import MANIFEST, Descriptor, Source
from builder.system.workers import Workers

NAMES = {
    "oci": "image.oci",
    "sif": "image.sif",
    "charliecloud": "image.tar.gz",
    "directory": "rootfs",
}
ENVIRONMENT = "ch/environment"  # where ch-run --set-env looks
_MOUNT_POINTS = ("ch", "dev", "proc", "run", "sys", "tmp")
_OF_LAYERS = ("oci", "directory")
NOTED = ("oci", "charliecloud")  # what is in their layers is noted, and not written out


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
class Brought:
    """A layer's blob, and the note on what is in it, where that is asked for."""

    blob: Path
    note: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Where what comes from registries is kept; `coming` are the layers that come meanwhile."""

    store: Store
    contents: Contents
    coming: Coming[Brought]


def kept_in(
    folder: Path,
    *,
    check: Callable[[], object],
    tell: Callable[[str], object] = lambda _: None,
    coming: Coming[Brought] | None = None,
    workers: Workers | None = None,
) -> Kept:
    """What is kept below a folder; `check` raises what is to end the reading of a layer.

    `tell` is told of what is waited for.
    Images of one command share what is `coming`: each layer is brought once. They share `workers`,
    too (`builder.distribute.pull.contents.reading`).
    """
    return Kept(
        store=Store(folder=folder / "blobs", check=check, tell=tell),
        contents=Contents(folder=folder / "layers", check=check, workers=workers),
        coming=coming or Coming(),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Packer:
    """Brings the blobs of an image from a registry, and makes one format of them."""

    registry: Source
    kept: Kept
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

    def begin(self, artifact_format: str) -> None:
        """Have the layers come that a format will be made of."""
        if artifact_format in _OF_LAYERS:
            for layer in self.found.layers:
                self.kept.coming.ask(*self._asked(layer, noted=artifact_format == "oci"))

    def _directory(self, target: Path) -> Packed:
        target.mkdir()
        with self._layers(noted=False) as layers:
            unpacked = unpack(
                ((one.blob, digest) for one, digest in layers),
                target,
                reader=functools.partial(read, diff_ids=self.found.diff_ids),
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
        with self._layers(noted=True) as layers:
            reader = functools.partial(noted, diff_ids=found.diff_ids)
            unpacked = unpack(self._placed(layers, target), None, reader=reader)
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
        blob = self.kept.store.get(self.registry, self.artifact)
        unpacked = None
        if artifact_format == "charliecloud":
            note = self.kept.contents.note(blob, self.artifact.digest)
            unpacked = unpack([(note, self.artifact.digest)], None, reader=noted)
        elif not is_sif(blob):
            raise Refused(f"{self.artifact.digest}: what was published as a SIF is none")
        self.kept.store.give(blob, target)
        target.chmod(0o755 if artifact_format == "sif" else 0o644)
        return Packed(name=target.name, digest=self.artifact.digest, unpacked=unpacked, given=blob)

    @contextmanager
    def _layers(self, *, noted: bool) -> Iterator[Iterator[tuple[Brought, str]]]:
        """Each layer and its digest, the lowest first, when it has come.

        The others come meanwhile.
        """
        coming, asked = (
            self.kept.coming,
            [self._asked(one, noted=noted) for one in self.found.layers],
        )
        try:
            for one in asked:
                coming.ask(*one)
            yield (
                (coming.get(*one), layer.digest)
                for one, layer in zip(asked, self.found.layers, strict=True)
            )
        except BaseException:
            self.registry.stop()
            coming.forget(self.found)
            raise

    def _asked(self, layer: Descriptor, *, noted: bool) -> tuple[str, Callable[[], Brought], Found]:
        return layer.digest, functools.partial(self._bring, layer, noted=noted), self.found

    def _bring(self, layer: Descriptor, *, noted: bool) -> Brought:
        blob = self.kept.store.get(self.registry, layer)
        note = self._note(blob, layer.digest) if noted else None
        return Brought(blob=blob, note=note)

    def _note(self, blob: Path, digest: str) -> Path:
        return self.kept.contents.note(blob, digest, hashed=digest in self.found.diff_ids)

    def _placed(
        self, layers: Iterator[tuple[Brought, str]], layout: Path
    ) -> Iterator[tuple[Path, str]]:
        """The notes on layers whose blobs are in the layout by then."""
        for one, digest in layers:
            shown = blob_path(layout, digest)
            if not shown.exists():
                self.kept.store.place(one.blob, shown)
            assert one.note is not None  # it was asked for
            yield one.note, digest
