"""Copy inputs from an archive into the builder's home, and a project's files into a folder.

Signed documents say what each file is. Its path in the home is computed or checked here.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from builder.build.base_store import staging
from builder.build.native.files import digest_of, entries_of, put_together, read_entries
from builder.build.native.tools import RECORD
from builder.distribute.bundle.contents import INPUTS
from builder.distribute.bundle.inputs import TAG, Input, input_counts, keep_base, read_base
from builder.distribute.bundle.layout import Bundle, BundledRepository
from builder.distribute.pull.folders import atomic_folder
from builder.model.architectures import ARCHITECTURES
from builder.model.digests import digest_of_file
from builder.model.errors import BadInput, MissingPrerequisite, counted
from builder.model.exact_json import part
from builder.model.records import read
from builder.registry import Descriptor, NotFound, Reference, Source, WrongContent
from builder.registry.manifests import (
    BASE,
    NATIVE,
    PACKAGES,
    PROJECT,
    REGISTRY_BASE,
    SOURCES,
    TITLE,
    blobs_of,
    descriptors,
)
from builder.sources.journals import ANSWERS, Journals, ServedFile, is_build_id, is_file
from builder.system.files import replacing
from builder.system.home import Home
from builder.system.locks import locked

_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]*")
_BASE_KEYS = ("name", "arch", "key", "digest", "made")
_MOST_CONFIG = 32 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedInputs:
    """Inputs in a builder's home, and in a folder for the project if one is named."""

    home: Path
    checkout: Path | None
    inputs: Sequence[Input]

    def as_json(self) -> dict[str, object]:
        """Return the counts, the native tools, and the files in the folder as JSON values."""
        files = sorted(files_of_project(self.inputs)) if self.checkout else []
        counts = input_counts(self.inputs)
        return {"home": str(self.home), **counts, "native": self._native(), "project": files}

    def as_text(self) -> str:
        """Return a line for the home, and one for the folder."""
        counts = input_counts(self.inputs)
        words = {"bases": "base", "sources": "source", "packages": "package"}
        parts = [counted(counts[key], word) for key, word in words.items()]
        parts += [f"native tools {name}" for name in self._native()]
        lines = [f"{', '.join(parts)} in {self.home}"]
        if self.checkout:
            lines.append(f"{counted(counts['project'], 'file')} of the project in {self.checkout}")
        return "\n".join(lines)

    def _native(self) -> list[str]:
        return [entry.text("name") for entry in self.inputs if entry.kind == NATIVE]


def index_of_inputs(bundle: Bundle) -> tuple[BundledRepository, Descriptor]:
    """Return the index of an archive's inputs; raises `MissingPrerequisite` if it has none."""
    repository = bundle.repository(INPUTS)
    try:
        return repository, repository.resolve(TAG)
    except NotFound as error:
        raise MissingPrerequisite(
            f"{bundle.archive.path}: the archive has only images: no bases, sources or packages",
            hint="run bundle without --no-inputs on the machine that built the images",
        ) from error


def inputs_of(repository: Source, index: Descriptor) -> list[Input]:
    """Read the inputs that an index names.

    Raises `WrongContent` for an unknown artifact, and for a base that is not an image, or whose
    architecture differs from that in its document.
    """
    _, document = repository.document(index)
    inputs = []
    for where in descriptors(document, "manifests", repository.name):
        _, manifest = repository.document(where.bare())
        if "config" not in manifest:
            raise repository.wrong(where.digest, "not an input artifact")
        config, *layers = blobs_of(manifest, where.digest)
        content = repository.small_blob(config, _MOST_CONFIG)
        about = repository.object_of(content, config.digest, most=None)
        files = {layer.annotations.get(TITLE, ""): (layer, repository) for layer in layers}
        if len(files) != len(layers):
            raise repository.wrong(where.digest, "not an input artifact")
        entry = Input(kind=str(manifest.get("artifactType")), about=about, files=files)
        inputs.append(_base_in(repository, entry) if entry.kind == REGISTRY_BASE else entry)
    return inputs


def fill_home(repository: BundledRepository, inputs: list[Input], home: Home) -> None:
    """Put bases, sources, native tools and packages where builds look for them."""
    ways = {BASE: _base, SOURCES: _sources, NATIVE: _native, PACKAGES: _packages}
    for entry in inputs:
        if entry.kind == REGISTRY_BASE:
            keep_base(entry, home.bases)
        elif entry.kind in ways:
            ways[entry.kind](repository, entry, home)


def files_of_project(inputs: Sequence[Input]) -> dict[str, Descriptor]:
    """Return the project's files, by path."""
    files = (entry.files for entry in inputs if entry.kind == PROJECT)
    return {name: blob for by_name in files for name, (blob, _) in by_name.items()}


def write_project(repository: BundledRepository, inputs: list[Input], folder: Path) -> None:
    """Write the project's files into a new folder; one that exists must hold these files."""
    with atomic_folder(folder) as new:
        if new:
            _write_files(repository, inputs, new)
        else:
            check_project(inputs, folder)


def check_project(inputs: list[Input], folder: Path) -> None:
    """Raise `BadInput` for a folder that does not hold exactly the project's files."""
    if not _is_project(inputs, folder):
        problem = f"{folder} exists, and is not the project of this archive"
        raise BadInput(problem, hint="name another folder")


def _write_files(repository: BundledRepository, inputs: list[Input], folder: Path) -> None:
    for name, blob in files_of_project(inputs).items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise repository.wrong(blob.digest, f"not a project path: {name!r}")
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        repository.read_blob(blob, target)


def _is_project(inputs: list[Input], folder: Path) -> bool:
    files = files_of_project(inputs)
    if folder.is_symlink() or not all(_holds(folder / name, files[name]) for name in files):
        return False
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return {path.relative_to(folder).as_posix() for path in paths} == files.keys()


def _base(repository: BundledRepository, entry: Input, home: Home) -> None:
    record = {key: entry.text(key) for key in _BASE_KEYS}
    if len(entry.files) != 1:
        raise repository.wrong(record["digest"], "not a base image")
    [(title, (blob, _))] = entry.files.items()
    names = [title.removesuffix(".oci.tar"), record["digest"].partition(":")[2][:12]]
    if not all(_NAME.fullmatch(name) for name in names):
        raise repository.wrong(record["digest"], "not a base image")
    folder = "-".join(names)
    with locked(home.bases, folder):
        target = home.bases / folder
        if not ((target / "base.json").exists() and _holds(target / title, blob)):
            with staging(home.bases, folder) as partial:
                repository.read_blob(blob, partial / title)
                text = json.dumps({**record, "archive": str(partial / title)}, indent=1)
                (partial / "base.json").write_text(text)


def _base_in(repository: Source, entry: Input) -> Input:
    """Return a base of a registry that an entry names, with the blobs of its manifest."""
    name, arch, digest = map(entry.text, ("name", "arch", "digest"))
    try:
        is_name = Reference.parse(name).digest == digest
    except BadInput:
        is_name = False
    if digest not in entry.files or not is_name or arch not in ARCHITECTURES:
        raise repository.wrong(digest, "not a base image from a registry")
    return read_base(repository, name, arch, entry.files[digest][0].bare())


def _sources(repository: BundledRepository, entry: Input, home: Home) -> None:
    for sha256, (blob, _) in entry.files.items():
        if blob.digest != f"sha256:{sha256}":
            raise repository.wrong(blob.digest, "not a source")
        with locked(home.sources, sha256):
            _bring(repository, blob, home.source(sha256))


def _native(repository: BundledRepository, record: Input, home: Home) -> None:
    name, digest, date = map(record.text, ("name", "digest", "made"))
    try:
        entries = read_entries(record.about.get("entries"))
    except ValueError as error:
        raise repository.wrong(digest, f"not native tools: {error}") from error
    contents = {content for _, mode, content in entries if stat.S_ISREG(mode)}
    files = {sha for sha, (blob, _) in record.files.items() if blob.digest == f"sha256:{sha}"}
    if digest_of(entries) != digest or files != contents or not _NAME.fullmatch(name):
        raise repository.wrong(digest, "not native tools")
    folder = f"{name}-{digest.partition(':')[2][:12]}"
    with locked(home.native, folder):
        target = home.native / folder
        if not (target / RECORD).exists() or digest_of(entries_of(target / "root")) != digest:
            with staging(home.native, folder) as partial:
                put_together(
                    entries,
                    partial / "root",
                    lambda sha, path: repository.read_blob(record.files[sha][0], path),
                )
                about = {"name": name, "digest": digest, "made": date}
                (partial / RECORD).write_text(json.dumps(about, indent=1))
                partial.chmod(0o755)


def _packages(repository: BundledRepository, record: Input, home: Home) -> None:
    build, journals = record.text("build"), Journals(cache=home.packages)
    downloads = _downloads(record)
    if not is_build_id(build) or {entry.file for entry in downloads} != record.files.keys():
        raise repository.wrong(build, "not a build journal")
    for file, (blob, _) in record.files.items():
        folder, _, name = file.partition("/")
        if folder == ANSWERS and blob.digest != f"sha256:{name}":
            raise repository.wrong(blob.digest, f"content differs from {file}")
    # Builds share files: two loads of different builds could write the same file at the same time.
    with locked(home.packages, "load"):
        for file, (blob, _) in record.files.items():
            _bring(repository, blob, home.packages / file)
        journals.replace(build, downloads)
    if index := record.about.get("index"):
        journals.note_index(str(index))


def _downloads(record: Input) -> list[ServedFile]:
    try:
        downloads = [read(ServedFile, entry) for entry in part(record.about, "given") or []]
    except (TypeError, ValueError) as error:
        raise WrongContent("invalid line in a journal") from error
    for download in downloads:
        if not is_file(download.file):
            raise WrongContent(f"invalid file name in a journal: {download.file!r}")
    return downloads


def _holds(file: Path, blob: Descriptor) -> bool:
    return file.is_file() and digest_of_file(file) == blob.digest


def _bring(repository: BundledRepository, blob: Descriptor, target: Path) -> None:
    if _holds(target, blob):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, alone=True) as partial:
        repository.read_blob(blob, partial)
        partial.chmod(0o644)
