"""The manifest in an image's output folder, the state that it shows, and records of users' runs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.model import EPOCH, FORMATS, PlannedImage
from builder.model.digests import digest_of
from builder.model.errors import BadInput, suggestion
from builder.model.exact_json import parsed
from builder.model.manifest import LOG, MANIFEST, Artifact, Manifest, manifest_from, manifest_text
from builder.model.measurement import ProgramRun
from builder.model.records import write
from builder.system.files import json_record, read_regular, unnamed, write_atomically

if TYPE_CHECKING:
    from builder.artifacts.flatten import TreeNode
    from builder.model.agreement import Statement

_EPOCH = "SOURCE_DATE_EPOCH"
_LATEST_EPOCH = 1 << 32  # a .pyc holds its source's time in 32 bits


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if there is none that can be read."""
    try:
        return manifest_from(parsed(read_regular(folder / MANIFEST, follow=True), most=None))
    except (OSError, ValueError):
        return None


def find_image(path: Path, out: Path, is_image: Callable[[Path], bool], hint: str) -> Path:
    """Return the path of an image that is named by path, or by its identifier in `out`."""
    for place in (places := (path, out / path.name)):
        if is_image(place):
            return place
    if any((place / LOG).exists() for place in places):
        raise BadInput(f"{path.name}: no finished image", hint=f"see build-images logs {path.name}")
    known = sorted(folder.name for folder in out.glob("*") if folder.is_dir())
    hint = suggestion(path.name, known) + hint
    raise BadInput(f"{path.name}: no such image at this path or in {out}", hint=hint)


def write_manifest(folder: Path, manifest: Manifest, written: Iterable[str]) -> Manifest:
    """Write a manifest with the digests of the files `written` now, and return it."""
    bound = with_digests(folder, manifest, written)
    write_atomically(folder / MANIFEST, manifest_text(bound))
    return bound


def why_none(folder: Path) -> str:
    """Return why a folder has no manifest that can be read."""
    if os.path.lexists(folder / MANIFEST):
        return f"{folder / MANIFEST}: not a finished image: damaged, or from another version"
    return f"{folder}: not a finished image: no {MANIFEST}"


def epoch_of(environment: Mapping[str, str]) -> int:
    """Return the latest time that a time stamp may have: $SOURCE_DATE_EPOCH, else `EPOCH`.

    Seconds since 1970, https://reproducible-builds.org/specs/source-date-epoch/
    """
    text = environment.get(_EPOCH, "")
    if not text:
        return EPOCH
    if not (text.isascii() and text.isdecimal() and int(text) < _LATEST_EPOCH):
        raise BadInput(
            f"{_EPOCH}={text} is not a number of seconds since 1970",
            hint="unset it, or set it as in: SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)",
        )
    return int(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageGoal:
    """The state that a run is to bring every image to. Times in images are at most `epoch`."""

    formats: tuple[str, ...] = FORMATS
    engine: str = "buildah"
    verify: bool = True
    epoch: int = EPOCH
    native_tools: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageState:
    """The state of an image: the `work` to do, and a `text` that describes it."""

    work: Literal["build", "verify", "none"]
    text: str
    manifest: Manifest | None = None


BUILD_AGAIN = ImageState(work="build", text="to build: all of it again")


def state_of(out: Path, image: PlannedImage, goal: ImageGoal) -> ImageState:
    """Return the state of an image in an output folder."""
    folder = out / image.identifier
    manifest = read_manifest(folder)
    if manifest is None:
        return ImageState(work="build", text="to build")
    if reason := _why_not(manifest, folder, image, goal):
        return ImageState(work="build", text=f"to build: {reason}")
    if goal.verify and manifest.outcome != "verified":
        text = f"to verify: {manifest.outcome}"
        return ImageState(work="verify", text=text, manifest=manifest)
    return ImageState(work="none", text=f"{manifest.outcome}, unchanged", manifest=manifest)


def _why_not(manifest: Manifest, folder: Path, image: PlannedImage, goal: ImageGoal) -> str:
    """Return why an image has to be built again; empty if it need not."""
    inputs = manifest.inputs
    absent = [name for name in goal.formats if name not in manifest.artifacts]
    reasons = {
        "its inputs changed": manifest.content_key != image.content_key,
        f"{manifest.engine} built it": manifest.engine != goal.engine,
        f"no {', '.join(absent)} yet": absent,
        "built by an earlier version, which did not record its input files": (
            not inputs.files or not inputs.program
        ),
        "it was built with native tools": inputs.native_tools and not goal.native_tools,
        "SOURCE_DATE_EPOCH changed": inputs.source_date_epoch not in {None, goal.epoch},
        "built by an earlier version, which did not record the digest of its bill of materials": (
            manifest.sbom not in manifest.digests
        ),
    }
    if reason := next((text for text, holds in reasons.items() if holds), ""):
        return reason
    paths = {artifact_path(folder, artifact): artifact for artifact in manifest.artifacts.values()}
    is_whole = all(path.exists() and size_of(path) == one.size for path, one in paths.items())
    return "" if is_whole else "its artifacts are incomplete"


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


FOLDER = "opt/build-images/"
PROGRAMS = f"{FOLDER}bin/"


def programs_in(nodes: Mapping[str, TreeNode]) -> dict[str, str]:
    """Return the digests of the checks' programs in an image, named as if the spec had them."""
    return {
        path.replace(FOLDER, "files/", 1): digest_of(node.read())
        for path, node in nodes.items()
        if path.startswith(PROGRAMS) and node.member.isreg()
    }


def read_statements(folder: Path, manifest: Manifest) -> dict[str, Statement | None]:
    """Return the evidence that a manifest names, by its file; None where it cannot be read."""

    def read(name: str) -> Statement | None:
        try:
            statement = parsed(read_regular(folder / name, follow=True), most=None)
        except (OSError, ValueError):
            return None
        return statement if isinstance(statement, dict) else None

    return {name: read(name) for name in manifest.evidence}


def judged_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Return the manifest of a folder, failed where its evidence contradicts it."""
    from builder.model.agreement import as_judged, faults_of  # noqa: PLC0415 - plans judge nothing

    return as_judged(manifest, faults_of(manifest, read_statements(folder, manifest)))


def judged_manifests(out: Path) -> list[Manifest]:
    """Return the judged manifest of every image in a folder."""
    return [
        judged_manifest(folder, manifest)
        for folder in sorted(folder for folder in out.iterdir() if folder.is_dir())
        if (manifest := read_manifest(folder)) is not None
    ]


def artifact_path(folder: Path, artifact: Artifact) -> Path:
    """Return where an artifact of a manifest lies: in its folder, whatever path the manifest says.

    A manifest can come from anybody, and the files that it names may be sent to a registry.
    """
    return folder / artifact.path.name


def with_digests(folder: Path, manifest: Manifest, written: Iterable[str]) -> Manifest:
    """Return a manifest with the digests of the files that were `written` now.

    Digests of other files stay as they are, so a file that was replaced since is not bound.
    """
    new = {name: digest_of((folder / name).read_bytes()) for name in written}
    known = {**manifest.digests, **new}
    digests = {name: known[name] for name in manifest.bound_names if name in known}
    return dataclasses.replace(manifest, digests=digests)


# ---- Records of the programs that users run ----

RUNS = "runs"  # their folder, below an image's folder
_RETAINED = 20


def check_writable(folder: Path, *files: Path) -> None:
    """Raise `OSError` unless records of an image, and further files, can be written."""
    (folder / RUNS).mkdir(exist_ok=True)
    for place in (folder / RUNS, *(file.parent for file in files)):
        try:
            with unnamed(place):
                pass
        except OSError as error:  # it names the file
            raise OSError(error.errno, error.strerror, str(place)) from error


def record(folder: Path, run: ProgramRun) -> Path:
    """Write the record of a run below an image's folder, and remove the oldest ones."""
    moment = re.sub(r"[-:]|\+.*", "", run.started)
    file = folder / RUNS / f"{moment}-{run.place.name}-{secrets.token_hex(3)}.json"
    write_atomically(file, json.dumps(write(run)) + "\n")
    for older in sorted(file.parent.glob("*.json"))[:-_RETAINED]:
        older.unlink(missing_ok=True)
    return file


def recorded(folder: Path) -> list[ProgramRun]:
    """Return the recorded runs of an image, the oldest first."""
    files = sorted((folder / RUNS).glob("*.json"))
    return [run for file in files if (run := json_record(ProgramRun, file))]
