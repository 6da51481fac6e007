"""Releases of a selection: the images of all architectures under one tag, ready to be published.

An image is ready if its folder matches the plan, and if each of its formats has evidence that names
its digest and reports no failure.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from builder.artifacts.manifests import artifact_path, read_manifest, read_statements
from builder.artifacts.oci import blob_path, read_layout
from builder.build.planning import images_of, plan_of
from builder.model import (
    AXES,
    GENERIC,
    RUNTIME,
    Cell,
    FloatingTag,
    PlannedImage,
    Project,
    Selection,
)
from builder.model.agreement import faults_of, required_checks
from builder.model.architectures import ARCHITECTURES
from builder.model.digests import Descriptor
from builder.model.errors import BadInput, Fault, Refused, StepFailed, counted
from builder.model.manifest import FILES, Manifest, required_runs
from builder.model.predicates import STATEMENT, TEST_RESULT, TestLists, result_of
from builder.model.site import PROJECT, layer_of
from builder.registry.manifests import MANIFEST
from builder.registry.references import read_descriptor
from builder.system.files import read_bound
from builder.verify.targets import harness_digests, harness_of

_NOT_FAILED = ("PASSED", "WARNED")  # a skipped check counts as a warning, never as passed


BlobFile: TypeAlias = "tuple[Descriptor, Path]"  # a blob, and the file that holds it


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyImage:
    """A proven image: `blobs` are its config and layers, `files` its SIF and tarball, by format.

    `statements` are the bytes of its evidence, `bill` those of its bill of materials. `proven` is
    when the last of its checks ended, ISO 8601. `record` is the manifest.json of its `folder`, with
    the names of that evidence alone.
    """

    planned: PlannedImage
    folder: Path
    record: Manifest
    image: Descriptor
    manifest: bytes
    blobs: tuple[BlobFile, ...]
    files: Mapping[str, BlobFile]
    statements: tuple[bytes, ...]
    bill: bytes
    proven: str

    @property
    def arch(self) -> str:
        """Its architecture, as this project spells it."""
        return self.planned.cell.arch


AnyImage = TypeVar("AnyImage")


@dataclass(frozen=True, kw_only=True, slots=True)
class Release(Generic[AnyImage]):
    """The images under one tag of a recipe's repository, one for each architecture.

    `tags` are its own tag and the floating tags that point to it. `relatives` are the recipes and
    tags of its ancestors, whose images may have the same layers.
    """

    recipe: str
    tags: tuple[str, ...]
    images: tuple[AnyImage, ...]
    relatives: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.recipe}:{self.tags[0]}"


Declared: TypeAlias = Release[PlannedImage]
ReadyRelease: TypeAlias = Release[ReadyImage]


def ready(
    image: PlannedImage,
    folder: Path,
    manifest: Manifest | None,
    harness: Mapping[str, str] | None = None,
) -> tuple[ReadyImage | None, list[str]]:
    """Return an image from its output folder, or every reason why it may not be published.

    `manifest` is that of the folder; None if it has none. `harness` has the digests of the scripts
    that ran the checks, by their paths in the image.
    """
    if manifest is None:
        if os.path.lexists(folder / "manifest.json"):
            return None, ["its manifest.json is damaged, or another version wrote it"]
        return None, ["it is not built: its folder has no manifest.json"]
    reasons = list(_differences(image, manifest))
    try:
        descriptor, content, blobs = _image(image, folder)
        files = {
            name: _blob(
                Descriptor(media_type=name, digest=artifact.digest, size=artifact.size),
                artifact_path(folder, artifact),
            )
            for name, artifact in manifest.artifacts.items()
            if name != "oci"
        }
    except (StepFailed, OSError, LookupError, ValueError, TypeError) as error:
        return None, [*reasons, f"it is incomplete: {error}"]
    if descriptor.digest != manifest.artifacts["oci"].digest:
        reasons.append(f"its OCI layout contains {descriptor.digest}, which was not verified")
    evidence, faults = _evidence(image, folder, manifest, harness or {})
    reasons += faults
    try:
        bill = read_bound(folder, manifest, manifest.sbom)
    except BadInput as error:
        reasons.append(f"its bill of materials: {error.args[0]}")
    if reasons:
        return None, reasons
    proven_image = ReadyImage(
        planned=image,
        folder=folder,
        record=dataclasses.replace(manifest, evidence=tuple(evidence)),
        image=descriptor,
        manifest=content,
        blobs=blobs,
        files=files,
        statements=tuple(evidence.values()),
        bill=bill,
        proven=max(map(finished, evidence.values())),
    )
    return proven_image, []


def _differences(image: PlannedImage, manifest: Manifest) -> Iterator[str]:
    if manifest.image != image.identifier:
        yield f"its folder contains {manifest.image}"
    if manifest.content_key != image.content_key:
        yield "its inputs changed after the build: build it again"
    if manifest.cell != image.cell:
        yield f"its manifest is for another cell: {asdict(manifest.cell)}"
    if manifest.outcome != "verified":
        yield f"it is not verified: {manifest.outcome}"


def _image(image: PlannedImage, folder: Path) -> tuple[Descriptor, bytes, tuple[BlobFile, ...]]:
    """Return the manifest of the OCI layout, its bytes and its blobs.

    Manifest and configuration are checked against their digests.
    """
    layout = read_layout(folder / FILES["oci"])
    architecture = ARCHITECTURES[image.cell.arch].oci
    if layout.architecture != architecture:
        raise StepFailed(f"its config is for {layout.architecture}")
    content = blob_path(layout.path, layout.digest).read_bytes()
    parsed = json.loads(content)
    descriptors = [read_descriptor(entry, "it") for entry in (parsed["config"], *parsed["layers"])]
    blobs = tuple(_blob(blob, blob_path(layout.path, blob.digest)) for blob in descriptors)
    platform = {"os": "linux", "architecture": architecture}
    descriptor = Descriptor(
        media_type=MANIFEST, digest=layout.digest, size=len(content), platform=platform
    )
    return descriptor, content, blobs


def _blob(descriptor: Descriptor, path: Path) -> BlobFile:
    size = path.stat().st_size
    if size != descriptor.size:
        raise StepFailed(f"{path.name} has {size} bytes, expected {descriptor.size}")
    return descriptor, path


def _evidence(
    image: PlannedImage, folder: Path, manifest: Manifest, harness: Mapping[str, str]
) -> tuple[dict[str, bytes], list[str]]:
    """Return the evidence of an image by name, and the reasons why it is not sufficient.

    An optional run is left out if a check failed or none passed: a failure on one machine affects
    the image only if its owner attaches it (`builder.distribute.publish.failures`).
    """
    statements: dict[str, bytes] = {}
    evidence = read_statements(folder, manifest)
    required = required_checks([check.name for check in image.checks], image.cell.mpi)
    reasons = faults_of(manifest, evidence, required=required, harness=harness)
    runs, formats = required_runs(manifest.checks), set[str]()
    for name, statement in evidence.items():
        try:
            result = result_of(statement or {})
            failures = _failures(result.lists)
            if failures and Path(name).stem not in runs:
                continue
            reasons += [f"{name}: {failure}" for failure in failures]
            statements[name] = read_bound(folder, manifest, name)
            formats.add(result.run.format)
        except BadInput as error:
            reasons.append(str(error.args[0]))
        except (ValueError, LookupError, TypeError, AttributeError):
            continue  # `faults_of` has reported it
    for lacking in sorted(manifest.artifacts.keys() - formats):
        reasons.append(f"no evidence that its checks ran as {lacking}")
    return statements, reasons


def _failures(lists: TestLists) -> list[str]:
    if has_failed(lists):
        return [f"{lists.result}: {', '.join(lists.failed)}"]
    return [] if lists.passed else ["no check passed"]


def is_test_result(statement: Mapping[str, object]) -> bool:
    """Return whether a statement is evidence of a run of checks."""
    return (statement["_type"], statement["predicateType"]) == (STATEMENT, TEST_RESULT)


def has_failed(lists: TestLists) -> bool:
    """Return whether a check failed in a test result."""
    return lists.result not in _NOT_FAILED or bool(lists.failed)


def finished(statement: bytes) -> str:
    """Return the time when a run of checks ended, ISO 8601."""
    run = json.loads(statement)["predicate"]["configuration"][0]
    return str(run["annotations"]["finished"])


BUILD_HINT = "run build-images with the same selectors to build and verify what is missing"
NARROW_HINT = "publish these architectures, too, or remove the tag from the registry"


def declared_releases(project: Project, selection: Selection) -> list[Declared]:
    """Return the releases that have a selected cell.

    A release has every architecture of the matrix, also if globs select only one of them; only
    `--arch` and the default selection of the matrix leave architectures out. Raises `BadInput` for
    floating tags of the project's own matrix without a cell.
    """
    chosen = {_without_arch(image.cell) for image in images_of(project, selection)}
    patterns = {
        axis: tuple(sorted({cell.axis(axis) for cell in chosen})) for axis in ("recipe", *AXES)
    }
    wide = Selection(
        patterns={**patterns, "arch": _architectures(project, selection)},
        flavours=selection.flavours,
        cpu_targets=selection.cpu_targets,
    )
    groups: dict[Cell, list[PlannedImage]] = {}
    for image in images_of(project, wide):
        if (key := _without_arch(image.cell)) in chosen:
            groups.setdefault(key, []).append(image)
    _check_floating(project, {cell.recipe for cell in chosen})
    return [
        Release(
            recipe=cell.recipe,
            tags=(cell.tag, *(tag.tag for tag in project.matrix.tags if _means(tag, cell))),
            images=tuple(sorted(images, key=lambda image: image.cell.arch)),
            relatives=_relatives(project, cell),
        )
        for cell, images in groups.items()
    ]


def ready_releases(
    releases: Sequence[Declared], out: Path, project: Path
) -> tuple[list[ReadyRelease], list[str]]:
    """Return the releases in the output folder, and the reasons against publishing, a line each."""
    complete: list[ReadyRelease] = []
    reasons: list[str] = []
    for release in releases:
        images: list[ReadyImage] = []
        for image in release.images:
            folder = out / image.identifier
            harness = harness_of(harness_digests(image, project))
            proven, faults = ready(image, folder, read_manifest(folder), harness)
            images += [proven] if proven else []
            reasons += [f"{release}: {image.cell.arch}: {fault}" for fault in faults]
        complete.append(
            Release(
                recipe=release.recipe,
                tags=release.tags,
                images=tuple(images),
                relatives=release.relatives,
            )
        )
    return complete, reasons


def _relatives(project: Project, cell: Cell) -> tuple[tuple[str, str], ...]:
    """Return the recipe's ancestors, nearest first, each with its tag for the same cell."""
    return tuple(
        (recipe.name, dataclasses.replace(cell, recipe_version=recipe.version).tag)
        for recipe in reversed(project.chain(cell.recipe)[:-1])
    )


def _architectures(project: Project, selection: Selection) -> tuple[str, ...]:
    """Return the patterns of the architectures that releases must have; empty for all."""
    default = not (selection.everything or selection.patterns or selection.images)
    return (project.matrix.default if default else selection.patterns).get("arch", ())


def _without_arch(cell: Cell) -> Cell:
    return dataclasses.replace(cell, arch="")


def _means(tag: FloatingTag, cell: Cell) -> bool:
    if (cell.flavour, cell.cpu) != (RUNTIME, GENERIC):
        return False
    named = (tag.recipe, tag.base, tag.cuda, tag.mpi)
    return named == (cell.recipe, cell.base, cell.cuda, cell.mpi)


def _check_floating(project: Project, recipes: set[str]) -> None:
    """Raise `BadInput` for floating tags of these recipes without a cell, with the reasons.

    Only tags of the project itself count: it cannot remove an inherited one.
    """
    faults = [
        Fault(
            file=tag.where.file,
            line=tag.where.line,
            key=tag.where.key,
            problem="the cell of this tag is left out",
            valid="; ".join(reasons),
        )
        for tag in project.matrix.tags
        if tag.recipe in recipes
        and layer_of(tag.where.file) == PROJECT
        and (reasons := _why_none(project, tag))
    ]
    if faults:
        raise BadInput.of(faults, "nothing was published")


def _why_none(project: Project, tag: FloatingTag) -> list[str]:
    patterns = {"recipe": tag.recipe, "base": tag.base, "cuda": tag.cuda, "mpi": tag.mpi}
    selection = Selection(patterns={axis: (value,) for axis, value in patterns.items()})
    plan = plan_of(project, selection, may_be_empty=True)
    if any(_means(tag, image.cell) for image in plan.images):
        return []
    texts = [str(reason) for excluded in plan.left_out for reason in excluded.reasons]
    return list(dict.fromkeys(texts)) or ["the matrix has no such cell"]


def refusal(
    reasons: Sequence[str],
    declared: Sequence[Declared],
    *,
    notes: Sequence[str] = (),
    hint: str = BUILD_HINT,
    done: str = "published",
) -> Refused:
    """Return the error that lists the reasons, and the notes on attached failures."""
    count = counted(len(declared), "release")
    outcome = "no image was published, and no tag was set" if notes else f"nothing was {done}"
    return Refused("\n".join([f"{count} selected; {outcome}:", *reasons, *notes]), hint=hint)
