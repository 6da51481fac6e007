"""Proving again what an image's output folder holds."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from builder.artifacts.manifests import (
    State,
    Wanted,
    artifact_path,
    read_manifest,
    read_statements,
    state_of,
    why_none,
    write_manifest,
)
from builder.artifacts.oci import Layout, labels_of, read_layout
from builder.build.engines import Tools
from builder.build.packing import file_digest
from builder.build.run import Run, now
from builder.build.workspace import FILES, link_or_copy
from builder.model import FAILED, Artifact, PlannedImage
from builder.model.agreement import (
    Statement,
    checked_outcomes,
    faults_of,
    formats_not_run,
    required_checks,
)
from builder.model.architectures import ARCHITECTURES
from builder.model.digests import sha256_of_file
from builder.model.errors import BadInput, StepFailed
from builder.model.manifest import MANIFEST, Manifest, ProvenImage, required_runs
from builder.model.package_indices import states_in
from builder.model.records import write
from builder.model.versions import split_mpi
from builder.system.files import irregular, read_bound
from builder.verify import RUNNERS, Target
from builder.verify.harness import harness_of, within
from builder.verify.proof import prove, proven_on_gpu, proven_part

Found = TypeVar("Found", bound=ProvenImage)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenImage:
    """A finished image whose artifacts lie where the ordinary user can read them."""

    record: Manifest
    artifacts: Mapping[str, Artifact]
    target: Target
    work: Path

    @property
    def manifest(self) -> dict[str, object]:
        """The manifest as `manifest.json` has it, for the tests of sites (docs/verification.md)."""
        return write(self.record)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified(Generic[Found]):
    """What a verification came to: `runs` are those that were tried, by name.

    `untried` says of the others what this machine lacks for them: of those, `found` has what the
    manifest had before. `pulled` is the digest of an image that was pulled, and has no manifest.
    """

    found: Found
    runs: tuple[str, ...]
    untried: Mapping[str, str]
    pulled: str = ""

    @property
    def has_failed(self) -> bool:
        """True if a check of these runs failed."""
        outcomes = (one for name in self.runs for one in self.found.checks[name])
        return any(one.outcome == FAILED for one in outcomes)


def prove_again(
    run: Run, folder: Path, runners: Sequence[str] = (), *, expected: Target | None = None
) -> Verified[Manifest]:
    """Verify the artifacts in an image's output folder; the manifest is written anew there, too.

    With `runners`, what other runners found stays in the manifest beside what they find now.
    `expected` is what the image's project says of it, which no manifest can change.
    Raises `BadInput` when an artifact is missing, or is not the one that the manifest names, and
    `MissingPrerequisite` where this machine can run nothing of it.
    """
    started = now()
    with opened(folder, run.tools, expected) as image:
        check_runners(image.artifacts, runners)
        proof = prove(
            run, image.target, image.artifacts, work=image.work, folder=folder, runners=runners
        )
    proven = proven_part(image.target.identifier, run, proof)
    statements = read_statements(folder, image.record)
    updated = dataclasses.replace(merged(image.record, proven, statements), verified=started)
    manifest = write_manifest(folder, updated, proof.evidence)
    return Verified(found=manifest, runs=tuple(proof.outcomes), untried=proof.untried)


def finished(folder: Path) -> Manifest:
    """The manifest of an image's output folder; raises `BadInput` if it is none."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise BadInput(
            why_none(folder),
            hint="name an image's folder, such as out/IDENTIFIER, or what pull left",
        )
    return manifest


@contextlib.contextmanager
def opened(folder: Path, tools: Tools, expected: Target | None = None) -> Iterator[OpenImage]:
    """The image in an output folder, its artifacts compared with the manifest's digests."""
    manifest = finished(folder)
    with work_folder(tools) as work:
        artifacts = {
            artifact_format: within_reach(artifact_format, artifact, folder, work)
            for artifact_format, artifact in manifest.artifacts.items()
        }
        target = _target(manifest, artifacts["oci"].path, expected)
        yield OpenImage(record=manifest, artifacts=artifacts, target=target, work=work)


@contextlib.contextmanager
def work_folder(tools: Tools) -> Iterator[Path]:
    """A folder in the builder's home where the ordinary user can read, gone afterwards."""
    tools.home.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="verify-") as name:
        work = Path(name)
        work.chmod(0o755)
        yield work


def check_runners(artifacts: Mapping[str, Artifact], runners: Sequence[str]) -> None:
    """Raise `BadInput` unless each runner has an artifact to run."""
    for name in runners:
        wanted = RUNNERS[name].format
        if wanted not in artifacts:
            raise BadInput(
                f"--runner {name}: it runs the {wanted} artifact, which was not made",
                hint=f"this image has: {', '.join(artifacts)}",
            )


def merged(
    manifest: Manifest,
    proven: ProvenImage,
    statements: Mapping[str, Statement | None] | None = None,
) -> Manifest:
    """A manifest with what was `proven` now in the place of what the same runners found before.

    Outcomes of other runners stay, as they are of the same artifacts. What is said of all of them
    is worked out anew: whether one was emulated, and whether all were proven on a GPU. With
    `statements`, the evidence by file, a run that its evidence contradicts has failed.
    """
    checks = {**manifest.checks, **proven.checks}
    if statements is not None:
        for name in checks.keys() - proven.checks.keys():
            checks[name] = checked_outcomes(manifest, name, statements)
    failed = any(one.outcome == FAILED for name in required_runs(checks) for one in checks[name])
    known = dataclasses.replace(manifest, checks=checks)
    unproven = formats_not_run(known)
    return dataclasses.replace(
        with_emulation(
            manifest.with_proof(proven), known, dict.fromkeys(proven.checks, proven.emulated)
        ),
        proven_on_gpu=proven_on_gpu(known.gpu_checks, manifest.artifacts, checks),
        checks=checks,
        outcome="failed" if failed else "built" if unproven else "verified",
        evidence=tuple(sorted({*manifest.evidence, *proven.evidence})),
    )


def with_emulation(manifest: Manifest, before: Manifest, done: Mapping[str, bool]) -> Manifest:
    """A manifest with what is so of emulation: of the runs `before`, and of those `done` since.

    Runs are named as their evidence is: `oci-docker`, `sif-mpi-hybrid-srun`; the value is whether
    it was emulated. The image is if one of them is; before its first check, if its build was.
    """
    runs = _emulated_runs(before) - done.keys() | {name for name, was in done.items() if was}
    unchecked = not before.checks and bool(before.emulated_build)
    return dataclasses.replace(
        manifest, emulated=bool(runs) or unchecked, emulated_runs=tuple(sorted(runs))
    )


def _emulated_runs(manifest: Manifest) -> set[str]:
    """Earlier versions said it of all runs at once."""
    if manifest.emulated_runs is not None:
        return {*manifest.emulated_runs}
    if not manifest.emulated:
        return set()
    launched = (manifest.launched or {}).items()
    return {*manifest.checks, *(f"{name}-{one.check}" for name, some in launched for one in some)}


def subjects(manifest: Manifest, ran: Artifact) -> list[Artifact]:
    """What was found is true of: all artifacts, if an earlier verification found them equal."""
    return [*manifest.artifacts.values()] if manifest.formats_equal else [ran]


def within_reach(
    artifact_format: str,
    artifact: Artifact,
    folder: Path,
    work: Path,
    *,
    said: str = "the manifest",
) -> Artifact:
    """An artifact where the ordinary user can read it: the output folder may be closed to him.

    Raises `BadInput` when the file is not the one that the manifest names, or what else `said` it.
    """
    name = FILES[artifact_format]  # never a path out of the manifest, which can be anybody's
    source, target = folder / name, work / name
    if not source.exists():
        raise BadInput(f"{source}: {said} names this artifact, and it is not there")
    for odd in irregular(source):
        raise BadInput(f"{odd}: neither a file nor a folder, so {source.name} is not whole")
    if source.is_dir():
        shutil.copytree(source, target, copy_function=link_or_copy)
        found = read_layout(target).digest
    else:
        link_or_copy(source, target)
        found = file_digest(target)
    if found != artifact.digest:
        raise BadInput(f"{source}: its digest is {found}, {said} says {artifact.digest}")
    return dataclasses.replace(artifact, path=target, tree_digest="")


def _target(manifest: Manifest, path: Path, expected: Target | None = None) -> Target:
    """What is to be proven. Raises `BadInput` where the image is not of the manifest's cell."""
    layout = read_layout(path)
    check_cell(manifest, layout)
    target = expected or _noted(manifest)
    return dataclasses.replace(
        target,
        environment=layout.environment,
        directory=layout.directory,
        harness={**target.harness, **harness_of(manifest.inputs.programs)},
    )


def _noted(manifest: Manifest) -> Target:
    """What a manifest says that is to be proven."""
    return Target(
        identifier=manifest.image,
        arch=manifest.cell.arch,
        environment={},
        mpi=manifest.cell.mpi,
        harness=harness_of(manifest.inputs.specs or {}),
        indices=states_in(manifest.inputs),
        checks=manifest.in_image_checks,
    )


def check_cell(manifest: Manifest, layout: Layout) -> None:
    """Hold a manifest's cell against what the image says of itself; raises `BadInput`."""
    cell, labels = manifest.cell, labels_of(layout)
    names = {one.oci: name for name, one in ARCHITECTURES.items()}
    family, _ = split_mpi(cell.mpi)
    noted = {
        "architecture": (cell.arch, names.get(layout.architecture, layout.architecture)),
        "identifier": (manifest.image, labels.get("build-images.identifier")),
        "MPI": (family, labels.get("build-images.mpi", family).partition(" ")[0]),
    }
    for what, (said, found) in noted.items():
        if found not in {said, None}:
            raise BadInput(
                f"{manifest.image}: the image's {what} is {found}, and {MANIFEST} says {said}"
            )


def proven_state(
    out: Path, image: PlannedImage, wanted: Wanted, specs: Mapping[str, str] | None = None
) -> State:
    """What the main job has left to do for an image, by all bytes of what is there.

    `specs` are the digests of the files that its spec copies in.
    """
    state, folder = state_of(out, image, wanted), out / image.identifier
    if state.work != "none" or state.manifest is None:
        return state
    if changed := _changed(folder, state.manifest):
        return State(work="build", text=f"to build: its {changed} is not what was made")
    if not wanted.verify:
        return state
    required = required_checks([check.name for check in image.checks], image.cell.mpi)
    statements = read_statements(folder, state.manifest)
    harness = within(harness_of(specs or {})) if image.checks else {}
    faults = faults_of(state.manifest, statements, required=required, harness=harness)
    if faults := faults or _unbound(folder, state.manifest, statements):
        return State(work="verify", text=f"to verify: {faults[0]}", manifest=state.manifest)
    return state


def _changed(folder: Path, manifest: Manifest) -> str:
    """The first format whose bytes are not those that the manifest names; empty if all are."""
    for name, artifact in manifest.artifacts.items():
        try:
            digest = _digest(artifact_path(folder, artifact))
        except (OSError, StepFailed, LookupError, TypeError, ValueError):
            digest = "damaged"
        if digest != artifact.digest:
            return name
    return "bill of materials" if _unbound(folder, manifest, [manifest.sbom]) else ""


def _unbound(folder: Path, manifest: Manifest, names: Iterable[str]) -> list[str]:
    """Return which of some files are not those that a manifest names by their digests."""
    faults = []
    for name in names:
        try:
            read_bound(folder, manifest, name)
        except BadInput as error:
            faults.append(str(error.args[0]))
    return faults


def _digest(path: Path) -> str:
    """The digest of a file, or of an OCI layout, whose blobs are all read."""
    if not path.is_dir():
        return f"sha256:{sha256_of_file(path)}"
    layout = read_layout(path)
    for blob in layout.layers:
        if sha256_of_file(blob) != blob.name:
            raise StepFailed(f"{blob}: not the blob that it is named for")
    return layout.digest
