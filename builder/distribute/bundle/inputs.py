"""Inputs of images, as artifacts of an archive: project, bases, sources, tools, packages.

One index names them all, under one tag; whoever signs it has signed all of them.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from builder.build.native import NativeTools
from builder.build.native.files import Entry
from builder.distribute.bundle.bases import RegistryBase
from builder.distribute.bundle.contents import INPUTS, Contents, artifact
from builder.distribute.publish.attaching import Attached
from builder.model.digests import sha256_of_file
from builder.registry import INDEX, Descriptor
from builder.registry.kinds import (
    BASE,
    NATIVE,
    PACKAGES,
    PROJECT,
    REGISTRY_BASE,
    SOURCES,
    TITLE,
    as_bytes,
)
from builder.sources.journals import ServedFile

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
    """Put inputs into an archive; the index that is to be signed."""
    files = {name: _file(path) for name, path in inputs.project.items()}
    artifacts = [artifact(contents, PROJECT, {"files": sorted(files)}, files, title=TITLE)]
    for _, base in sorted(inputs.bases.items()):
        layers = {base.archive.name: _file(base.archive)}
        artifacts.append(artifact(contents, BASE, dict(base.record), layers, title=TITLE))
    for digest, remote in sorted(inputs.registry_bases.items()):
        named = {"name": remote.name, "arch": remote.arch, "digest": digest}
        artifacts.append(artifact(contents, REGISTRY_BASE, named, remote.files, title=TITLE))
    if inputs.sources:
        layers = {sha: _file(path, sha) for sha, path in inputs.sources.items()}
        names = {"sources": sorted(inputs.sources)}
        artifacts.append(artifact(contents, SOURCES, names, layers, title=TITLE))
    for digest, tools in sorted(inputs.native.items()):
        native = {"name": tools.tools.name, "digest": digest, "made": tools.tools.made}
        native_files = {**native, "entries": [list(entry) for entry in tools.entries]}
        artifacts.append(artifact(contents, NATIVE, native_files, tools.files, title=TITLE))
    for _, build in sorted(inputs.builds.items()):
        layers = {package.file: _file(build.cache / package.file) for package in build.packages}
        packages = sorted(map(asdict, build.packages), key=lambda package: str(package["url"]))
        about = {"build": build.name, "index": build.index, "given": packages}
        artifacts.append(artifact(contents, PACKAGES, about, layers, title=TITLE))
    manifests = [descriptor.as_json() for descriptor in artifacts]
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
    return contents.list_manifest(as_bytes(index), INDEX, INPUTS, [TAG])


def add_proof(contents: Contents, proof: Sequence[Attached]) -> None:
    """The signature of that index."""
    contents.add_attached(INPUTS, proof)


def _file(path: Path, sha256: str = "") -> tuple[Descriptor, Path]:
    """A file as a blob; it is read again when it is written, and has to be the same then."""
    digest = f"sha256:{sha256 or sha256_of_file(path)}"
    size = path.stat().st_size
    return Descriptor(media_type=_OCTETS, digest=digest, size=size), path
