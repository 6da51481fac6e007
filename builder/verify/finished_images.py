"""Verify the artifacts in an image's output folder again."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts import manifests
from builder.artifacts.compare import keep_contents
from builder.artifacts.oci import Layout, labels_of, read_layout
from builder.build.engines import Tools
from builder.build.run import Run, now
from builder.model import Artifact, PlannedImage, agreement
from builder.model.architectures import ARCHITECTURES
from builder.model.digests import digest_of_file, sha256_of_file
from builder.model.errors import BadInput, StepFailed
from builder.model.manifest import FILES, MANIFEST, Manifest, ProvenImage
from builder.model.package_indices import states_in
from builder.model.records import write
from builder.model.versions import split_mpi
from builder.system.files import irregular, link_or_copy, read_bound
from builder.verify.proof import StartRun, Verified, judged, prove
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import readable_folder
from builder.verify.targets import ProofTarget, harness_of


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenImage:
    """A finished image whose artifacts the ordinary user can read."""

    record: Manifest
    artifacts: Mapping[str, Artifact]
    target: ProofTarget
    work: Path

    @property
    def manifest(self) -> dict[str, object]:
        """The manifest as in `manifest.json`, for the tests of sites (docs/verification.md)."""
        return write(self.record)


def prove_again(
    run: Run,
    folder: Path,
    runners: Sequence[str] = (),
    *,
    expected: ProofTarget | None = None,
    runs: Mapping[str, StartRun] | None = None,
) -> Verified[Manifest]:
    """Verify the artifacts in an image's output folder, and rewrite its manifest.

    With `runners` or `runs` (see `prove`), the outcomes of others stay beside the new ones.
    `expected` is the project's description of the image, which no manifest can change.
    Raises `BadInput` if an artifact is missing or differs from the manifest, and
    `MissingPrerequisite` if this machine can run none of the checks.
    """
    started = now()
    with opened(folder, run.tools, expected) as image:
        check_runners(image.artifacts, runners)
        proof = prove(
            run,
            image.target,
            image.artifacts,
            work=image.work,
            folder=folder,
            runners=runners,
            runs=runs,
        )
    if proof.tree:
        keep_contents(folder, folder / FILES["oci"], proof.tree.entries)
    statements = manifests.read_statements(folder, image.record)
    updated = dataclasses.replace(merged(image.record, proof.record, statements), verified=started)
    manifest = manifests.write_manifest(folder, updated, proof.record.evidence)
    record = manifests.judged_manifest(folder, manifest)  # as the report and `publish` judge it
    return Verified(record=record, runs=proof.runs, untried=proof.untried)


def read_finished(folder: Path) -> Manifest:
    """Return the manifest of an image's output folder; raises `BadInput` for another folder."""
    manifest = manifests.read_manifest(folder)
    if manifest is None:
        raise BadInput(
            manifests.why_none(folder),
            hint="name an image's folder, such as out/IDENTIFIER, or the folder of a pulled image",
        )
    return manifest


@contextlib.contextmanager
def opened(folder: Path, tools: Tools, expected: ProofTarget | None = None) -> Iterator[OpenImage]:
    """Open the image in an output folder and compare its artifacts with the manifest's digests.

    Raises `BadInput` if the image's labels do not match the manifest's cell.
    """
    manifest = read_finished(folder)
    with readable_folder(tools.home.work, "verify-") as work:
        artifacts = {
            name: within_reach(name, artifact, folder, work)
            for name, artifact in manifest.artifacts.items()
        }
        layout = read_layout(artifacts["oci"].path)
        check_cell(manifest, layout)
        target = expected or ProofTarget(
            identifier=manifest.image,
            arch=manifest.cell.arch,
            environment={},
            mpi=manifest.cell.mpi,
            harness=harness_of(manifest.inputs.specs or {}),
            checks=manifest.in_image_checks,
        )
        target = dataclasses.replace(
            target,
            environment=layout.environment,
            directory=layout.directory,
            indices=states_in(manifest.inputs),
            harness={**target.harness, **harness_of(manifest.inputs.programs)},
        )
        yield OpenImage(record=manifest, artifacts=artifacts, target=target, work=work)


def check_runners(artifacts: Mapping[str, Artifact], runners: Sequence[str]) -> None:
    """Raise `BadInput` unless each runner has an artifact to run."""
    for name in runners:
        if (form := RUNNERS[name].format) not in artifacts:
            raise BadInput(
                f"--runner {name}: it runs the {form} artifact, which is missing",
                hint=f"this image has: {', '.join(artifacts)}",
            )


def merged(
    manifest: Manifest,
    proven: ProvenImage,
    statements: Mapping[str, agreement.Statement | None] | None = None,
) -> Manifest:
    """Return a manifest in which the outcomes `proven` replace those of the same runners.

    Outcomes of other runners stay, since they are about the same artifacts. Summaries are computed
    again: whether a run was emulated, and whether all were proven on a GPU. With `statements`, the
    evidence by file, a run that its evidence contradicts counts as failed.
    """
    checks = {**manifest.checks, **proven.checks}
    if statements is not None:
        for name in checks.keys() - proven.checks.keys():
            checks[name] = agreement.checked_outcomes(manifest, name, statements)
    known = dataclasses.replace(manifest, checks=checks)
    emulated = dict.fromkeys(proven.checks, proven.emulated)
    updated = with_emulation(manifest.with_proof(proven), known, emulated)
    evidence = tuple(sorted({*manifest.evidence, *proven.evidence}))
    return judged(dataclasses.replace(updated, checks=checks, evidence=evidence))


def with_emulation(manifest: Manifest, before: Manifest, done: Mapping[str, bool]) -> Manifest:
    """Return a manifest that lists the emulated runs: those of `before`, updated by `done`.

    `done` tells for each run whether it was emulated; runs have the names of their evidence files:
    `oci-docker`, `sif-mpi-hybrid-srun`. The image counts as emulated if one of its runs was;
    before its first check, if its build was.
    """
    runs = before.emulated_runs
    if runs is None:  # earlier versions recorded one value for all runs
        launched = (before.launched or {}).items()
        names = (f"{name}-{each.check}" for name, outcomes in launched for each in outcomes)
        runs = (*before.checks, *names) if before.emulated else ()
    emulated = {*runs} - done.keys() | {name for name, is_emulated in done.items() if is_emulated}
    unchecked = not before.checks and bool(before.emulated_build)
    return dataclasses.replace(
        manifest, emulated=bool(emulated) or unchecked, emulated_runs=tuple(sorted(emulated))
    )


def subjects(manifest: Manifest, ran: Artifact) -> list[Artifact]:
    """Return the artifacts that evidence applies to: all of them, if they were found equal."""
    return [*manifest.artifacts.values()] if manifest.formats_equal else [ran]


def within_reach(
    artifact_format: str,
    artifact: Artifact,
    folder: Path,
    work: Path,
    *,
    source: str = "the manifest",
) -> Artifact:
    """Return an artifact at a path that the ordinary user can read; the folder may be private.

    Raises `BadInput` if the file differs from the one in the manifest, or in another `source`.
    """
    name = FILES[artifact_format]  # never a path from the manifest, which is not trusted
    path, target = folder / name, work / name
    if not path.exists():
        raise BadInput(f"{path}: {source} names this artifact, but it is missing")
    for odd in irregular(path):
        raise BadInput(f"{odd}: neither a file nor a folder, so {name} is incomplete")
    if path.is_dir():
        target.mkdir()
        for original in sorted(path.rglob("*")):  # folders before what is in them
            copy = target / original.relative_to(path)
            copy.mkdir() if original.is_dir() else link_or_copy(original, copy)
        digest = read_layout(target).digest
    else:
        link_or_copy(path, target)
        digest = digest_of_file(target)
    if digest != artifact.digest:
        raise BadInput(f"{path}: its digest is {digest}, but {source} says {artifact.digest}")
    return dataclasses.replace(artifact, path=target, tree_digest="")


def check_cell(manifest: Manifest, layout: Layout) -> None:
    """Compare a manifest's cell with the image's own labels; raises `BadInput`."""
    cell, labels = manifest.cell, labels_of(layout)
    names = {arch.oci: name for name, arch in ARCHITECTURES.items()}
    family, _ = split_mpi(cell.mpi)
    pairs = {
        "architecture": (cell.arch, names.get(layout.architecture, layout.architecture)),
        "identifier": (manifest.image, labels.get("build-images.identifier")),
        "MPI": (family, labels.get("build-images.mpi", family).partition(" ")[0]),
    }
    for name, (expected, actual) in pairs.items():
        if actual not in {expected, None}:
            raise BadInput(
                f"{manifest.image}: the image's {name} is {actual}, and {MANIFEST} says {expected}"
            )


def proven_state(
    out: Path,
    image: PlannedImage,
    expected: manifests.ImageGoal,
    specs: Mapping[str, str],
) -> manifests.ImageState:
    """Return the remaining work for an image, after all bytes of its folder were read.

    `specs` are the digests of the files that its spec copies in.
    """
    state, folder = manifests.state_of(out, image, expected), out / image.identifier
    if state.manifest is None:
        return state
    if changed := _changed(folder, state.manifest):
        text = f"to build: its {changed} changed after the build"
        return manifests.ImageState(work="build", text=text)
    if state.work == "verify" or not expected.verify:
        return state
    required = agreement.required_checks([check.name for check in image.checks], image.cell.mpi)
    statements = manifests.read_statements(folder, state.manifest)
    harness = harness_of(specs) if image.checks else {}
    faults = agreement.faults_of(state.manifest, statements, required=required, harness=harness)
    fault = faults[0] if faults else _unbound(folder, state.manifest, statements)
    if not fault:
        return state
    return dataclasses.replace(state, work="verify", text=f"to verify: {fault}")


def _changed(folder: Path, manifest: Manifest) -> str:
    """Return the first format whose digest differs from the manifest's; empty if all match."""
    for name, artifact in manifest.artifacts.items():
        try:
            digest = whole_digest(manifests.artifact_path(folder, artifact))
        except (OSError, StepFailed, LookupError, TypeError, ValueError):
            return name
        if digest != artifact.digest:
            return name
    return "bill of materials" if _unbound(folder, manifest, [manifest.sbom]) else ""


def _unbound(folder: Path, manifest: Manifest, names: Iterable[str]) -> str:
    """Return how the first of these files differs from the manifest; empty if none does."""
    for name in names:
        try:
            read_bound(folder, manifest, name)
        except BadInput as error:
            return str(error.args[0])
    return ""


def whole_digest(path: Path) -> str:
    """Return the digest of a file, or of an OCI layout after all its blobs were checked."""
    if not path.is_dir():
        return digest_of_file(path)
    layout = read_layout(path)
    for blob in layout.layers:
        if sha256_of_file(blob) != blob.name:
            raise StepFailed(f"{blob}: its content does not match its name")
    return layout.digest
