"""Inputs of images, as artifacts of an archive: project, bases, sources, tools, packages.

One index with one tag names them all, so one signature of the index covers them. In the archive, a
base image from a registry is stored as individual blobs; in the builder's home, as an OCI archive.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from builder.build.base_store import StoredBase, staging, stored_base
from builder.build.inputs import packed_files
from builder.build.native.files import Entry, digest_of, entries_of
from builder.build.native.tools import NativeTools, stored_tools
from builder.distribute.bundle.archive import INDEX_FILE, open_archive
from builder.distribute.bundle.contents import INPUTS, ArchiveContents, Origin, write_archive
from builder.distribute.bundle.layout import BundledRepository
from builder.distribute.publish.releases import ReadyImage
from builder.model.architectures import ARCHITECTURES
from builder.model.cells import image_tag, stage_tag
from builder.model.digests import canonical_json, sha256_of_file
from builder.model.errors import BadInput, MissingPrerequisite, counted
from builder.model.manifest import UsedBase
from builder.model.records import write
from builder.registry import INDEX, Descriptor, Reference, RegistryFailed, Source, WrongContent
from builder.registry.manifests import (
    BASE,
    MANIFEST,
    NATIVE,
    PACKAGES,
    PROJECT,
    REGISTRY_BASE,
    SOURCES,
    TITLE,
    blobs_of,
    descriptors,
)
from builder.registry.repository import MANIFESTS
from builder.sources.journals import Journals, ServedFile, build_id
from builder.sources.store import SourceStore
from builder.system.home import Home
from builder.system.locks import locked

Files: TypeAlias = "Mapping[str, tuple[Descriptor, Origin]]"  # by title


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """An artifact of inputs: its kind, its document, and its files by title."""

    kind: str
    about: Mapping[str, object]
    files: Files

    @property
    def size(self) -> int:
        """Size of its files in bytes."""
        return sum(blob.size for blob, _ in self.files.values())

    def text(self, key: str) -> str:
        """Return the text of a key of the document; empty if it is missing."""
        return str(self.about.get(key, ""))


def read_base(source: Source, name: str, arch: str, target: str | Descriptor) -> Input:
    """Return a base from a registry by the digest, or the descriptor, of its manifest.

    `name` is its reference by digest, without a site's mirror. The files of the result are the
    manifest and the blobs, by digest. Raises `WrongContent` unless it is an image of that
    architecture, and the errors of the source.
    """
    descriptor, content = source.read(target)
    manifest = source.object_of(content, descriptor.digest)
    if descriptor.media_type not in MANIFESTS or "config" not in manifest:
        raise source.wrong(descriptor.digest, "not the manifest of a single-architecture image")
    blobs = blobs_of(manifest, descriptor.digest)
    config = source.object_of(source.small_blob(blobs[0]), blobs[0].digest)
    if (actual := config.get("architecture")) != ARCHITECTURES[arch].oci:
        raise source.wrong(descriptor.digest, f"this base is for {actual!r}, not for {arch}")
    files: dict[str, tuple[Descriptor, Origin]] = {
        blob.digest: (blob.bare(), source) for blob in blobs
    }
    files[descriptor.digest] = descriptor, content
    about = {"name": name, "arch": arch, "digest": descriptor.digest}
    return Input(kind=REGISTRY_BASE, about=about, files=files)


def keep_base(base: Input, store: Path) -> None:
    """Store a base from a registry, unless the store has it; check every blob.

    `store` also holds the bases that are built here; a base is found by its digest.
    """
    name, arch, digest = map(base.text, ("name", "arch", "digest"))
    title = f"{Reference.parse(name).repository.rpartition('/')[2]}-{arch}"
    folder = f"{title}-{digest.partition(':')[2][:12]}"
    with locked(store, folder):
        if _is_complete(base, store / folder / f"{title}.oci.tar"):
            return
        with staging(store, folder) as partial:
            archive = partial / f"{title}.oci.tar"
            manifest, _ = base.files[digest]
            contents = ArchiveContents(kind="", entries=[manifest], blobs=dict(base.files))
            write_archive(archive, contents)
            stored = StoredBase(
                name=name, arch=arch, key="", archive=archive, digest=digest, made=""
            )
            (partial / "base.json").write_text(json.dumps(write(stored), indent=1))


def base_of_store(stored: StoredBase, name: str) -> Input:
    """Return a base that `keep_base` has stored."""
    archive = open_archive(stored.archive)
    source = BundledRepository(archive, "base", [])
    [manifest] = descriptors(archive.document(INDEX_FILE), "manifests", source.name)
    return read_base(source, name, stored.arch, manifest)


def _is_complete(base: Input, file: Path) -> bool:
    """Return whether the archive is complete, with the record that builds need beside it."""
    try:
        record = json.loads((file.parent / "base.json").read_text())
        archive = open_archive(file)
        archive.check_all()
    except (BadInput, WrongContent, OSError, ValueError):
        return False
    is_of_it = isinstance(record, dict) and record.get("digest") == base.about["digest"]
    return is_of_it and archive.blobs.keys() == base.files.keys()


TAG = "inputs"
_OCTETS = "application/octet-stream"
_KINDS = (PROJECT, BASE, REGISTRY_BASE, SOURCES, NATIVE, PACKAGES)  # in this order in the index


def input_counts(inputs: Collection[Input]) -> dict[str, int]:
    """Return the numbers of bases, sources, builds, packages and project files."""
    kinds = [entry.kind for entry in inputs]

    def files(kind: str) -> int:
        return len({title for entry in inputs if entry.kind == kind for title in entry.files})

    return {
        "bases": kinds.count(BASE) + kinds.count(REGISTRY_BASE),
        "sources": files(SOURCES),
        "builds": kinds.count(PACKAGES),
        "packages": files(PACKAGES),
        "project": files(PROJECT),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenArchive:
    """An archive: its releases and inputs, its bytes, and its digest, empty in a dry run."""

    path: Path
    releases: Sequence[str]
    inputs: Inputs
    size: int
    digest: str
    has_inputs: bool

    def as_json(self) -> dict[str, object]:
        """Return the content as JSON."""
        bases, native = self.inputs.of_kind(REGISTRY_BASE), self.inputs.of_kind(NATIVE)
        return {
            "archive": str(self.path),
            "releases": self.releases,
            "inputs": input_counts(self.inputs.by_name.values()),
            "registry_bases": [_described(base, "name", "arch") for base in bases],
            "native_tools": [_described(tools, "name", "digest") for tools in native],
            "blobs": len(self.inputs.contents.blobs),
            "bytes": self.size,
            **({"digest": self.digest} if self.digest else {}),
        }

    def as_text(self) -> str:
        """Return the content as lines."""
        lines, counts = list(self.releases), input_counts(self.inputs.by_name.values())
        if self.has_inputs:
            words = {"bases": "base", "sources": "source", "packages": "package"}
            parts = [counted(counts[key], word) for key, word in words.items()]
            lines.append(f"  built from {', '.join(parts)}")
        for base in self.inputs.of_kind(REGISTRY_BASE):
            lines += [f"  {base.about['name']}  {base.about['arch']}  {base.size / 1e6:.1f} MB"]
        for tools in self.inputs.of_kind(NATIVE):
            lines += [f"  native tools {tools.about['name']}  {tools.size / 1e6:.1f} MB"]
        shown = f"{counted(len(self.inputs.contents.blobs), 'blob')}, {self.size / 1e6:.1f} MB"
        dry = f"dry run, nothing was written: {shown}"
        return "\n".join([*lines, f"{self.path}  {shown}  {self.digest}" if self.digest else dry])


def _described(entry: Input, *keys: str) -> dict[str, object]:
    return {**{key: entry.about[key] for key in keys}, "bytes": entry.size}


@dataclass(kw_only=True, slots=True)
class Inputs:
    """Inputs for an archive, by kind and by a name to sort by."""

    contents: ArchiveContents
    by_name: dict[tuple[str, str], Input] = field(default_factory=dict)

    def of_kind(self, kind: str) -> list[Input]:
        """Return the inputs of a kind in the order of the index."""
        return [entry for (other, _), entry in sorted(self.by_name.items()) if other == kind]

    def add(self, kind: str, name: str, about: Mapping[str, object], files: Files) -> None:
        """Add an input."""
        self.by_name[kind, name] = Input(kind=kind, about=about, files=files)

    def add_index(self) -> Descriptor:
        """Add the manifests of all inputs; return their index, which is to be signed."""
        manifests = [self._manifest(entry) for kind in _KINDS for entry in self.of_kind(kind)]
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        return self.contents.list_manifest(canonical_json(index), INDEX, INPUTS, [TAG])

    def _manifest(self, entry: Input) -> dict[str, object]:
        document = canonical_json(entry.about)
        config = Descriptor.of(document, f"{entry.kind}+json")
        self.contents.add_blob(config, document)
        layers = []
        for title, (blob, origin) in sorted(entry.files.items()):
            self.contents.add_blob(blob, origin)
            layers.append(replace(blob, annotations={TITLE: title}).as_json())
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": entry.kind,
            "config": config.as_json(),
            "layers": layers,
        }
        descriptor = self.contents.add_manifest(canonical_json(manifest))
        return replace(descriptor, artifact_type=entry.kind).as_json()


def input_file(path: Path, sha256: str = "") -> tuple[Descriptor, Path]:
    """Return a file as a blob; its digest is checked again when the archive is written."""
    digest = f"sha256:{sha256 or sha256_of_file(path)}"
    size = path.stat().st_size
    return Descriptor(media_type=_OCTETS, digest=digest, size=size), path


def add_native(inputs: Inputs, tools: NativeTools, entries: Sequence[Entry]) -> None:
    """Add native tools; `entries` lists all of their files and folders."""
    files = {
        content: input_file(tools.root / path, content)
        for path, mode, content in entries
        if stat.S_ISREG(mode)
    }
    about = {"name": tools.name, "digest": tools.digest, "made": tools.made}
    listed = {"entries": [list(entry) for entry in entries]}
    inputs.add(NATIVE, tools.digest, {**about, **listed}, files)


def add_build(
    inputs: Inputs, build: str, downloads: Iterable[ServedFile], journals: Journals
) -> None:
    """Add the downloads of a build; `build` is its name in the journals."""
    served = sorted(downloads, key=lambda download: download.url)
    files = {download.file: input_file(journals.cache / download.file) for download in served}
    about = {"build": build, "index": journals.index, "given": [*map(asdict, served)]}
    inputs.add(PACKAGES, build, about, files)


def gather_inputs(
    inputs: Inputs, project: Path, images: Iterable[ReadyImage], source: Callable[[str], Source]
) -> None:
    """Add the inputs of images; raises one `MissingPrerequisite` that lists all missing inputs.

    `source` returns the repository of a base, as specs name it, if the store lacks the base.
    """
    home = Home.of_environment()
    journals, store = Journals(cache=home.packages), SourceStore(path=home.sources)
    sources: dict[str, tuple[Descriptor, Path]] = {}
    lacking: list[str] = []
    for image in images:
        planned, record = image.planned, image.record.inputs
        reasons: list[str] = []
        if planned.is_bootstrapped:
            reasons += _base(image, record.base, inputs)
        for name, at in planned.registry_bases.items():
            reasons += _registry_base(name, image.arch, partial(source, at), inputs)
        reasons += _sources(record.sources or {}, store, sources)
        reasons += _native(record.native_tools, home, inputs)
        reasons += _builds(image, record.stages, journals, inputs)
        lacking += [f"{planned.identifier}: {reason}" for reason in reasons]
    if lacking:
        lines = ["inputs of these images are missing; nothing was written:", *lacking]
        raise MissingPrerequisite(
            "\n".join(dict.fromkeys(lines)),
            hint="build again with --no-cache to record them, or leave them out with --no-inputs",
        )
    if sources:
        inputs.add(SOURCES, "", {"sources": sorted(sources)}, sources)
    files = {name: input_file(path) for name, path in packed_files(project).items()}
    inputs.add(PROJECT, "", {"files": sorted(files)}, files)


def _registry_base(
    name: str, arch: str, repository: Callable[[], Source], inputs: Inputs
) -> Iterator[str]:
    """Add a base by its digest: from the store, which `load` fills, else from the registry."""
    digest = Reference.parse(name).digest
    if not digest:
        yield f"its base {name} is not locked: run build-images lock, and build it again"
        return
    if (REGISTRY_BASE, digest) in inputs.by_name:
        return
    try:
        stored = stored_base(name, store=Home.of_environment().bases)
        base = (
            base_of_store(stored, name) if stored else read_base(repository(), name, arch, digest)
        )
    except WrongContent:
        raise
    except RegistryFailed as error:
        yield f"its base {name} is not in the store: {error.args[0]}"
    else:
        inputs.by_name[REGISTRY_BASE, digest] = base


def _base(image: ReadyImage, base: UsedBase, inputs: Inputs) -> Iterator[str]:
    archive = image.folder / f"{base.name}-{image.arch}.oci.tar"
    if not archive.is_file():
        yield f"its base {archive.name} is missing in its folder"
        return
    name = f"{archive.name} {base.digest}"
    about = {
        "key": base.key,
        "digest": base.digest,
        "made": base.created,
        "name": base.image,
        "arch": image.arch,
    }
    if (BASE, name) not in inputs.by_name:
        inputs.add(BASE, name, about, {archive.name: input_file(archive)})


def _sources(
    digests: Mapping[str, str], store: SourceStore, files: dict[str, tuple[Descriptor, Path]]
) -> Iterator[str]:
    for url, digest in digests.items():
        sha256 = digest.partition(":")[2]
        if store.place(sha256).is_file():
            files[sha256] = input_file(store.place(sha256), sha256)
        else:
            yield f"its source {url} is not in the store"


def _native(digest: str, home: Home, inputs: Inputs) -> Iterator[str]:
    if not digest or (NATIVE, digest) in inputs.by_name:
        return
    tools = next((stored for stored in stored_tools(home.native) if stored.digest == digest), None)
    entries = entries_of(tools.root) if tools else []
    if tools and digest_of(entries) == digest:
        add_native(inputs, tools, entries)
    else:
        yield "its native tools are not in the store, or were changed"


def _builds(
    image: ReadyImage, stages: Mapping[str, str], journals: Journals, inputs: Inputs
) -> Iterator[str]:
    """Add the builds of an image's stages; the last stage has the name of the image."""
    last = image.record.cell.flavour
    if last not in stages:
        yield "it was built by an earlier version, which did not record its stages"
        return
    names = {target: stage_tag(key) for target, key in stages.items()}
    names[last] = image_tag(image.planned.identifier, image.record.content_key)
    for target, name in names.items():
        build = build_id(name)
        downloads = list(journals.of(build).values())
        absent = [entry for entry in downloads if not (journals.cache / entry.file).is_file()]
        if not journals.is_complete(build):
            yield f"{target}: the downloads of its build were not recorded"
        elif absent:
            yield f"{target}: {len(absent)} packages were removed after the build"
        elif (PACKAGES, build) not in inputs.by_name:
            add_build(inputs, build, downloads, journals)
