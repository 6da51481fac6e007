"""Releases, which are the images under one tag, and the reasons against publishing one.

An image is ready when its folder holds what the plan says, and every format of it has evidence that
names its digests and says that nothing failed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.artifacts.manifests import artifact_path, read_statements
from builder.artifacts.oci import blob_path, read_layout
from builder.model import PlannedImage
from builder.model.agreement import faults_of, required_checks
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import BadInput, StepFailed
from builder.model.manifest import Manifest, required_runs
from builder.model.predicates import STATEMENT, TEST_RESULT, TestLists, result_of
from builder.registry.manifests import MANIFEST
from builder.registry.references import Descriptor
from builder.system.files import read_bound

_NOT_FAILED = ("PASSED", "WARNED")  # a check that was skipped is a warning, and is never passed


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """A blob, and the file that holds it."""

    descriptor: Descriptor
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A proven image: `blobs` are its config and layers, `files` its SIF and tarball, by format.

    `statements` are its evidence, `bill` its bill of materials, byte for byte; `proven` is when the
    last of its checks ended, ISO 8601. `record` is the manifest.json of its `folder`.
    """

    identifier: str
    arch: str
    folder: Path
    record: Manifest
    image: Descriptor
    manifest: bytes
    blobs: tuple[Blob, ...]
    files: Mapping[str, Blob]
    statements: tuple[bytes, ...]
    bill: bytes
    proven: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """The images under one tag of a recipe's repository, and the floating tags that point there.

    `relatives` are recipes and tags whose images may have the same layers: those of its ancestors.
    """

    recipe: str
    tag: str
    floating: tuple[str, ...]
    images: tuple[Ready, ...]
    relatives: tuple[tuple[str, str], ...] = ()


class NotReady(Exception):
    """Why an image may not be published; a line each."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


def ready(
    image: PlannedImage,
    folder: Path,
    manifest: Manifest | None,
    harness: Mapping[str, str] | None = None,
) -> Ready:
    """An image from its output folder; `manifest` is that of the folder, None if there is none.

    `harness` has the digests of the scripts that ran its checks, by their paths in the image.

    Raises `NotReady` with every reason that is found.
    """
    if manifest is None:
        damaged = "its manifest.json is damaged, or another version wrote it"
        lacking = "it is not built: its folder has no manifest.json"
        raise NotReady([damaged if os.path.lexists(folder / "manifest.json") else lacking])
    reasons = list(_of_manifest(image, manifest))
    statements: list[bytes] = []
    try:
        packed = _image(image, folder)
        files = _files(folder, manifest)
    except (StepFailed, OSError, LookupError, ValueError, TypeError) as error:
        raise NotReady([*reasons, f"it is not whole: {error}"]) from error
    if packed.image.digest != manifest.artifacts["oci"].digest:
        reasons.append(f"its OCI layout holds {packed.image.digest}, not what was verified")
    reasons += _proven(image, folder, manifest, statements, harness or {})
    bill = b""
    try:
        bill = read_bound(folder, manifest, manifest.sbom)
    except BadInput as error:
        reasons.append(f"its bill of materials: {error.args[0]}")
    if reasons:
        raise NotReady(reasons)
    return Ready(
        identifier=image.identifier,
        arch=image.cell.arch,
        folder=folder,
        record=manifest,
        image=packed.image,
        manifest=packed.manifest,
        blobs=packed.blobs,
        files=files,
        statements=tuple(statements),
        bill=bill,
        proven=max(map(finished, statements)),
    )


def _of_manifest(image: PlannedImage, manifest: Manifest) -> list[str]:
    reasons = []
    if manifest.image != image.identifier:
        reasons.append(f"its folder holds {manifest.image}")
    if manifest.content_key != image.content_key:
        reasons.append("it was built from other inputs than today's: build it again")
    if manifest.cell != image.cell:
        reasons.append(f"its manifest is of another cell: {asdict(manifest.cell)}")
    if manifest.outcome != "verified":
        reasons.append(f"it is not verified: {manifest.outcome}")
    return reasons


@dataclass(frozen=True, kw_only=True, slots=True)
class _Image:
    image: Descriptor
    manifest: bytes
    blobs: tuple[Blob, ...]


def _image(image: PlannedImage, folder: Path) -> _Image:
    """The image of the OCI layout; its manifest and config are checked against their digests."""
    layout = read_layout(folder / "image.oci")
    architecture = ARCHITECTURES[image.cell.arch].oci
    if layout.architecture != architecture:
        raise StepFailed(f"its config is for {layout.architecture}")
    content = blob_path(layout.path, layout.digest).read_bytes()
    parsed = json.loads(content)
    descriptors = [Descriptor.read(entry, "it") for entry in (parsed["config"], *parsed["layers"])]
    blobs = [Blob(descriptor=d, path=blob_path(layout.path, d.digest)) for d in descriptors]
    for blob in blobs:
        _check_size(blob)
    platform = {"os": "linux", "architecture": architecture}
    descriptor = Descriptor(
        media_type=MANIFEST, digest=layout.digest, size=len(content), platform=platform
    )
    return _Image(image=descriptor, manifest=content, blobs=tuple(blobs))


def _files(folder: Path, manifest: Manifest) -> dict[str, Blob]:
    """SIF and tarball, as far as the image was packed as such."""
    blobs = {}
    for name, artifact in manifest.artifacts.items():
        if name != "oci":
            described = {"mediaType": name, "digest": artifact.digest, "size": artifact.size}
            path = artifact_path(folder, artifact)
            blob = Blob(descriptor=Descriptor.read(described, name), path=path)
            _check_size(blob)
            blobs[name] = blob
    return blobs


def _check_size(blob: Blob) -> None:
    size = blob.path.stat().st_size
    if size != blob.descriptor.size:
        raise StepFailed(f"{blob.path.name} has {size} bytes, expected {blob.descriptor.size}")


def _proven(
    image: PlannedImage,
    folder: Path,
    manifest: Manifest,
    statements: list[bytes],
    harness: Mapping[str, str],
) -> list[str]:
    """Why the evidence is not enough; what there is of it is added to `statements`."""
    evidence = read_statements(folder, manifest)
    required = required_checks([check.name for check in image.checks], image.cell.mpi)
    reasons = faults_of(manifest, evidence, required=required, harness=harness)
    formats: set[str] = set()
    for name, statement in evidence.items():
        if statement and is_optional(name, manifest) and not speaks_for(statement):
            continue
        try:
            reasons += [f"{name}: {reason}" for reason in _failures(statement)] if statement else []
            content = read_bound(folder, manifest, name)
            formats.add(
                json.loads(content)["predicate"]["configuration"][0]["annotations"]["format"]
            )
            finished(content)
            statements.append(content)
        except BadInput as error:
            reasons.append(str(error.args[0]))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # which is among the reasons
    for lacking in sorted(manifest.artifacts.keys() - formats):
        reasons.append(f"no evidence of a run of its checks as {lacking}")
    return reasons


def _failures(statement: Mapping[str, object]) -> list[str]:
    """Return the failures that one statement names."""
    lists = result_of(statement).lists
    if has_failed(lists):
        return [f"{lists.result}: {', '.join(lists.failed)}"]
    return [] if lists.passed else ["no check passed"]


def is_optional(file: str, manifest: Manifest) -> bool:
    """True if a file of evidence is of a run that an image need not have."""
    return Path(file).stem not in required_runs(manifest.checks)


def speaks_for(statement: Mapping[str, object]) -> bool:
    """True if a check passed in a run, and none failed.

    Of an optional run, nothing else is published: by what failed on one machine, or could not be
    tried there, an image gets no worse unless its owner says so
    (`builder.distribute.publish.failures`).
    """
    try:
        return not _failures(statement)
    except (LookupError, TypeError, ValueError):
        return False


def is_test_result(statement: Mapping[str, object]) -> bool:
    """True if a statement is evidence of a run of checks."""
    return (statement["_type"], statement["predicateType"]) == (STATEMENT, TEST_RESULT)


def has_failed(lists: TestLists) -> bool:
    """True if a test result says that a check failed."""
    return lists.result not in _NOT_FAILED or bool(lists.failed)


def finished(statement: bytes) -> str:
    """When a run of checks ended, ISO 8601."""
    run = json.loads(statement)["predicate"]["configuration"][0]
    return str(run["annotations"]["finished"])
