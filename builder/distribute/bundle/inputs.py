"""Inputs of images, as artifacts of an archive: project, bases, sources, tools, packages.

One index names them all, under one tag; whoever signs it has signed all of them. A base image of a
registry is blobs among others there; in the builder's home it is an OCI archive of its own.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from builder.build.base_store import StoredBase, kept_base, staging
from builder.build.inputs import project_digests
from builder.build.native.files import Entry, digest_of, entries_of
from builder.build.native.tools import NativeTools, stored_tools
from builder.distribute.bundle.archive import INDEX_FILE, open_archive
from builder.distribute.bundle.contents import INPUTS, Contents, Origin, artifact, write_archive
from builder.distribute.bundle.layout import Bundle, Repository, json_of
from builder.distribute.publish.releases import Ready
from builder.model import PlannedImage
from builder.model.architectures import ARCHITECTURES
from builder.model.cells import image_tag, stage_tag
from builder.model.digests import sha256_of_file
from builder.model.errors import BadInput, MissingPrerequisite
from builder.model.manifest import UsedBase
from builder.model.records import write
from builder.registry import (
    INDEX,
    MANIFESTS,
    Descriptor,
    Reference,
    RegistryFailed,
    Source,
    WrongContent,
)
from builder.registry.manifests import (
    BASE,
    NATIVE,
    PACKAGES,
    PROJECT,
    REGISTRY_BASE,
    SOURCES,
    as_bytes,
    blobs_of,
    descriptors,
)
from builder.sources.journals import Journals, ServedFile, build_id
from builder.sources.store import SourceStore
from builder.system.home import Home
from builder.system.locks import locked
from builder.trust.proof.attachments import ProofManifest


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistryBase:
    """A base of a registry, read from `source`; its blobs are there by their digests.

    `name` is its reference by digest, without a site's mirror. `manifest` is that of its
    architecture, with its bytes; `blobs` are its configuration and its layers, each once.
    """

    name: str
    arch: str
    manifest: Descriptor
    content: bytes
    blobs: tuple[Descriptor, ...]
    source: Source

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return self.manifest.size + sum(blob.size for blob in self.blobs)

    @property
    def files(self) -> Mapping[str, tuple[Descriptor, Origin]]:
        """The manifest and the blobs, by digest, and where each is read."""
        blobs: dict[str, tuple[Descriptor, Origin]] = {
            blob.digest: (blob, self.source) for blob in self.blobs
        }
        return {self.manifest.digest: (self.manifest, self.content), **blobs}


def read_base(source: Source, name: str, arch: str, target: str | Descriptor) -> RegistryBase:
    """Return a base by the digest, or the descriptor, of its manifest.

    Raises `WrongContent` for what is no image of that architecture, and what the source fails with.
    """
    descriptor, content = source.read(target)
    manifest = source.object_of(content, descriptor.digest, "manifest")
    if descriptor.media_type not in MANIFESTS or "config" not in manifest:
        raise source.wrong(descriptor.digest, "it is not the manifest of one architecture's image")
    blobs = blobs_of(manifest, descriptor.digest)
    config = source.small_blob(blobs[0])
    about = source.object_of(config, blobs[0].digest, "configuration of an image")
    if (actual := about.get("architecture")) != ARCHITECTURES[arch].oci:
        raise source.wrong(descriptor.digest, f"this base is for {actual!r}, and not for {arch}")
    return RegistryBase(
        name=name,
        arch=arch,
        manifest=descriptor,
        content=content,
        blobs=tuple({blob.digest: blob.bare() for blob in blobs}.values()),
        source=source,
    )


def keep_base(base: RegistryBase, store: Path) -> None:
    """Put a base into the store, unless it is there; every blob is checked on the way.

    `store` is that of bases which are made here: a base is found there by its digest.
    """
    title = f"{Reference.parse(base.name).repository.rpartition('/')[2]}-{base.arch}"
    folder = f"{title}-{base.manifest.digest.partition(':')[2][:12]}"
    with locked(store, folder):
        if _is_complete(base, store / folder / f"{title}.oci.tar"):
            return
        with staging(store, folder) as partial:
            stored = StoredBase(
                name=base.name,
                arch=base.arch,
                key="",
                archive=partial / f"{title}.oci.tar",
                digest=base.manifest.digest,
                made="",
            )
            contents = Contents(kind="", entries=[base.manifest], blobs=dict(base.files))
            write_archive(stored.archive, contents)
            (partial / "base.json").write_text(json.dumps(write(stored), indent=1))


def base_of_store(stored: StoredBase, name: str) -> RegistryBase:
    """Return a base that `keep_base` has put into the store."""
    archive = open_archive(stored.archive)
    source = Repository(archive, "base", [])
    [manifest] = descriptors(json_of(archive, INDEX_FILE), "manifests", source.name)
    return read_base(source, name, stored.arch, manifest)


def _is_complete(base: RegistryBase, archive: Path) -> bool:
    """Return whether the archive is complete, and beside it the record that builds need."""
    try:
        record = json.loads((archive.parent / "base.json").read_text())
        bundle = Bundle(archive=open_archive(archive), listed=())
        bundle.check()
    except (BadInput, WrongContent, OSError, ValueError):
        return False
    is_of_it = isinstance(record, dict) and record.get("digest") == base.manifest.digest
    return is_of_it and bundle.archive.blobs.keys() == base.files.keys()


TAG = "inputs"
_OCTETS = "application/octet-stream"


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseFile:
    """A base image: what its record says of it, and its OCI archive."""

    record: Mapping[str, str]
    archive: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """Downloads of a build: `name` is how journals know it, `index` the one that pip was led to.

    `packages` are answers by URL; the files lie below `cache`.
    """

    name: str
    packages: Sequence[ServedFile]
    cache: Path
    index: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolFiles:
    """Native tools and all that they consist of; the digest of `tools` is that of `entries`."""

    tools: NativeTools
    entries: Sequence[Entry]

    @property
    def files(self) -> dict[str, tuple[Descriptor, Path]]:
        """The regular files, by SHA-256."""
        return {
            content: _file(self.tools.root / path, content)
            for path, mode, content in self.entries
            if stat.S_ISREG(mode)
        }

    @property
    def size(self) -> int:
        """Bytes of all of them, each counted once."""
        return sum(blob.size for blob, _ in self.files.values())


@dataclass(kw_only=True, slots=True)
class Inputs:
    """All that some images are built from. Paths of the project are relative to its folder."""

    project: dict[str, Path] = field(default_factory=dict)
    bases: dict[str, BaseFile] = field(default_factory=dict)  # by name and digest
    registry_bases: dict[str, RegistryBase] = field(default_factory=dict)  # by digest
    sources: dict[str, Path] = field(default_factory=dict)  # by SHA-256
    native: dict[str, ToolFiles] = field(default_factory=dict)  # by digest
    builds: dict[str, Build] = field(default_factory=dict)  # by who


def add_inputs(contents: Contents, inputs: Inputs) -> Descriptor:
    """Put inputs into an archive; return the index that is to be signed."""
    files = {name: _file(path) for name, path in inputs.project.items()}
    artifacts = [artifact(contents, PROJECT, {"files": sorted(files)}, files)]
    for _, base in sorted(inputs.bases.items()):
        layers = {base.archive.name: _file(base.archive)}
        artifacts.append(artifact(contents, BASE, dict(base.record), layers))
    for digest, remote in sorted(inputs.registry_bases.items()):
        named = {"name": remote.name, "arch": remote.arch, "digest": digest}
        artifacts.append(artifact(contents, REGISTRY_BASE, named, remote.files))
    if inputs.sources:
        layers = {sha: _file(path, sha) for sha, path in inputs.sources.items()}
        names = {"sources": sorted(inputs.sources)}
        artifacts.append(artifact(contents, SOURCES, names, layers))
    for digest, tools in sorted(inputs.native.items()):
        native = {"name": tools.tools.name, "digest": digest, "made": tools.tools.made}
        native_files = {**native, "entries": [list(entry) for entry in tools.entries]}
        artifacts.append(artifact(contents, NATIVE, native_files, tools.files))
    for _, build in sorted(inputs.builds.items()):
        layers = {package.file: _file(build.cache / package.file) for package in build.packages}
        packages = sorted(map(asdict, build.packages), key=lambda package: str(package["url"]))
        about = {"build": build.name, "index": build.index, "given": packages}
        artifacts.append(artifact(contents, PACKAGES, about, layers))
    manifests = [descriptor.as_json() for descriptor in artifacts]
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
    return contents.list_manifest(as_bytes(index), INDEX, INPUTS, [TAG])


def add_proof(contents: Contents, proof: Sequence[ProofManifest]) -> None:
    """Put the signature of that index into the archive."""
    contents.add_attached(INPUTS, proof)


def _file(path: Path, sha256: str = "") -> tuple[Descriptor, Path]:
    """Return a file as a blob; it is read again, and checked, when it is written."""
    digest = f"sha256:{sha256 or sha256_of_file(path)}"
    size = path.stat().st_size
    return Descriptor(media_type=_OCTETS, digest=digest, size=size), path


_CHECKS = "tests/images"
_OWN = "site.yaml"  # says what this machine's site has; another has its own


def inputs_of(
    project: Path,
    images: Sequence[tuple[PlannedImage, Ready]],
    inputs: Inputs,
    source: Callable[[str], Source],
) -> None:
    """Gather the inputs of images; raises `MissingPrerequisite` that names all that is not here.

    `source` gives the repository of a base as the specs name it, for one that the store lacks.
    """
    home = Home.of_environment()
    lacking: list[str] = []
    for planned, image in images:
        record = image.record.inputs
        if planned.is_bootstrapped:
            lacking += _base(image, record.base, inputs)
        for name, at in planned.registry_bases.items():
            lacking += _registry_base(image, name, planned.cell.arch, partial(source, at), inputs)
        lacking += _sources(image, record.sources or {}, SourceStore(path=home.sources), inputs)
        lacking += _native(image, record.native_tools, home, inputs)
        lacking += _builds(image, record.stages, Journals(cache=home.packages), inputs)
    if lacking:
        lines = ["what these images were built from is not here; nothing was written:", *lacking]
        raise MissingPrerequisite(
            "\n".join(dict.fromkeys(lines)),
            hint="build-images --no-cache builds them anew, and notes it; --no-inputs does without",
        )
    inputs.project |= {name: project / name for name in _declaring(project)}


def _declaring(project: Path) -> Iterator[str]:
    yield from (name for name in project_digests(project) if name != _OWN)
    for path in sorted((project / _CHECKS).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(project).as_posix()


def _registry_base(
    image: Ready, name: str, arch: str, repository: Callable[[], Source], inputs: Inputs
) -> Iterator[str]:
    """A base by its digest: from the store, if `load` has put it there, else from the registry."""
    digest = Reference.parse(name).digest
    if not digest:
        remedy = "run build-images lock, and build it again"
        yield f"{image.identifier}: its base {name} is not locked: {remedy}"
        return
    if digest in inputs.registry_bases:
        return
    try:
        stored = kept_base(name, store=Home.of_environment().bases)
        inputs.registry_bases[digest] = (
            base_of_store(stored, name) if stored else read_base(repository(), name, arch, digest)
        )
    except WrongContent:
        raise
    except RegistryFailed as error:
        yield f"{image.identifier}: its base {name} is not in the store: {error.args[0]}"


def _base(image: Ready, base: UsedBase, inputs: Inputs) -> Iterator[str]:
    archive = image.folder / f"{base.name}-{image.arch}.oci.tar"
    if not archive.is_file():
        yield f"{image.identifier}: its base, {archive.name}, does not lie in its folder"
        return
    record = {
        "key": base.key,
        "digest": base.digest,
        "made": base.made,
        "name": base.image,
        "arch": image.arch,
    }
    inputs.bases[f"{archive.name} {base.digest}"] = BaseFile(record=record, archive=archive)


def _sources(
    image: Ready, sources: Mapping[str, str], store: SourceStore, inputs: Inputs
) -> Iterator[str]:
    for url, digest in sources.items():
        sha256 = digest.partition(":")[2]
        if store.place(sha256).is_file():
            inputs.sources[sha256] = store.place(sha256)
        else:
            yield f"{image.identifier}: its source {url} is not in the store"


def _native(image: Ready, digest: str, home: Home, inputs: Inputs) -> Iterator[str]:
    """The native tools that the steps of an emulated build were lent."""
    if not digest or digest in inputs.native:
        return
    tools = next((stored for stored in stored_tools(home.native) if stored.digest == digest), None)
    entries = entries_of(tools.root) if tools else []
    if tools and digest_of(entries) == digest:
        inputs.native[digest] = ToolFiles(tools=tools, entries=entries)
    else:
        yield f"{image.identifier}: its native tools are not in the store, or not as they were"


def _builds(
    image: Ready, stages: Mapping[str, str], journals: Journals, inputs: Inputs
) -> Iterator[str]:
    """The builds of an image's stages; the last one is kept under the image's own name."""
    last = image.record.cell.flavour
    if last not in stages:
        yield f"{image.identifier}: an earlier version built it, and did not note its stages"
        return
    names = {target: stage_tag(key) for target, key in stages.items()}
    names[last] = image_tag(image.identifier, image.record.content_key)
    for target, name in names.items():
        build = build_id(name)
        downloads = list(journals.of(build).values())
        files = [journals.cache / download.file for download in downloads]
        absent = [file for file in files if not file.is_file()]
        if not journals.is_complete(build):
            yield f"{image.identifier}: {target}: it was not noted what its build downloaded"
        elif absent:
            yield f"{image.identifier}: {target}: {len(absent)} packages were removed since"
        else:
            inputs.builds[build] = Build(
                name=build, packages=downloads, cache=journals.cache, index=journals.index
            )
