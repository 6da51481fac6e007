"""Proving again what an image's output folder holds."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import facts
from builder.artifacts.agreement import (
    Statement,
    checked_outcomes,
    formats_not_run,
    read_statements,
)
from builder.artifacts.described import labels_of
from builder.artifacts.manifests import MANIFEST, read_manifest, why_none, write_manifest
from builder.artifacts.oci import Layout, read_layout
from builder.build.engines import Tools
from builder.build.packing import file_digest
from builder.build.run import Run, now
from builder.build.workspace import FILES, link_or_copy
from builder.facts.versions import split_mpi
from builder.model import FAILED, NONE, Artifact, Outcome
from builder.model.errors import BadInput
from builder.model.runs import required_runs
from builder.sources.package_indices import states_in
from builder.system.regular_files import irregular
from builder.verify import RUNNERS, InImageCheck, Target
from builder.verify.harness import harness_of
from builder.verify.proving import manifest_part, prove, proven_on_gpu
from builder.verify.reported import AskedRanks


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenImage:
    """A finished image whose artifacts lie where the ordinary user can read them."""

    manifest: Mapping[str, Any]
    artifacts: Mapping[str, Artifact]
    target: Target
    work: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What a verification came to: `runs` are those that were tried, by name.

    `untried` says of the others what this machine lacks for them: the `manifest` has of those what
    it had before.
    """

    manifest: Mapping[str, Any]
    runs: tuple[str, ...]
    untried: Mapping[str, str]

    @property
    def has_failed(self) -> bool:
        """Whether a check of these runs failed."""
        found = (one for name in self.runs for one in self.manifest["checks"][name])
        return any(one["outcome"] == FAILED for one in found)


def prove_again(
    run: Run, folder: Path, runners: Sequence[str] = (), *, expected: Target | None = None
) -> Verified:
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
        part = manifest_part(run, proof)
    statements = read_statements(folder, image.manifest)
    updated = {**merged(image.manifest, part, statements), "verified": started}
    manifest = write_manifest(folder, updated, part["evidence"])
    return Verified(manifest=manifest, runs=tuple(proof.outcomes), untried=proof.untried)


def finished(folder: Path) -> dict[str, Any]:
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
            for artifact_format, artifact in manifest["artifacts"].items()
        }
        target = _target(manifest, artifacts["oci"].path, expected)
        yield OpenImage(manifest=manifest, artifacts=artifacts, target=target, work=work)


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
    manifest: Mapping[str, Any],
    part: Mapping[str, Any],
    statements: Mapping[str, Statement | None] | None = None,
) -> dict[str, Any]:
    """A manifest with what was found now in the place of what the same runners found before.

    Outcomes of other runners stay, as they are of the same artifacts. What is said of all of them
    is worked out anew: whether one was emulated, and whether all were proven on a GPU. With
    `statements`, the evidence by file, a run that its evidence contradicts has failed.
    """
    checks = {**manifest["checks"], **part["checks"]}
    if statements is not None:
        for name in checks.keys() - part["checks"].keys():
            checks[name] = checked_outcomes(manifest, name, statements)
    failed = any(one["outcome"] == FAILED for name in required_runs(checks) for one in checks[name])
    unproven = formats_not_run({**manifest, "checks": checks})
    return {
        **manifest,
        **part,
        **emulation(
            {**manifest, "checks": checks},
            dict.fromkeys(part["checks"], bool(part.get("emulated"))),
        ),
        "proven_on_gpu": _proven_on_gpu(manifest, checks),
        "checks": checks,
        "outcome": "failed" if failed else "built" if unproven else "verified",
        "evidence": sorted({*manifest.get("evidence", ()), *part["evidence"]}),
    }


def emulation(manifest: Mapping[str, Any], done: Mapping[str, bool]) -> dict[str, Any]:
    """What a manifest says of emulation: of what is kept, and of the runs `done` in its place.

    Runs are named as their evidence is: `oci-docker`, `sif-mpi-hybrid-srun`; the value is whether
    it was emulated. The image is if one of them is; before its first check, if its build was.
    """
    runs = _emulated_runs(manifest) - done.keys() | {name for name, was in done.items() if was}
    unchecked = not manifest["checks"] and bool(manifest.get("emulated_build"))
    return {"emulated": bool(runs) or unchecked, "emulated_runs": sorted(runs)}


def _emulated_runs(manifest: Mapping[str, Any]) -> set[str]:
    """Earlier versions said it of all runs at once."""
    if "emulated_runs" in manifest:
        return set(manifest["emulated_runs"])
    if not manifest.get("emulated"):
        return set()
    launched = manifest.get("launched", {})
    ranks = {f"{name}-{one['check']}" for name, some in launched.items() for one in some}
    return {*manifest["checks"], *ranks}


def _proven_on_gpu(
    manifest: Mapping[str, Any], checks: Mapping[str, Sequence[Mapping[str, Any]]]
) -> bool | None:
    gpu = {one["name"] for one in manifest["in_image_checks"] if "gpu" in one["needs"]}
    found = {
        name: [
            Outcome(check=one["check"], outcome=one["outcome"], reason="", data=one.get("data", {}))
            for one in some
        ]
        for name, some in checks.items()
    }
    return proven_on_gpu(gpu, manifest["artifacts"], found)


def subjects(manifest: Mapping[str, Any], ran: Artifact) -> list[Artifact]:
    """What was found is true of: all artifacts, if an earlier verification found them equal."""
    if manifest.get("formats_equal") is not True:
        return [ran]
    artifacts = manifest["artifacts"].values()
    return [Artifact(**{**one, "path": Path(one["path"])}) for one in artifacts]


def within_reach(
    artifact_format: str,
    artifact: Mapping[str, Any],
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
    if found != artifact["digest"]:
        raise BadInput(f"{source}: its digest is {found}, {said} says {artifact['digest']}")
    return Artifact(**{**artifact, "path": target, "tree_digest": ""})


def _target(manifest: Mapping[str, Any], path: Path, expected: Target | None = None) -> Target:
    """What is to be proven. Raises `BadInput` where the image is not of the manifest's cell."""
    layout = read_layout(path)
    check_cell(manifest, layout)
    target = expected or _noted(manifest)
    programs = manifest.get("inputs", {}).get("programs", {})  # earlier versions noted none
    return dataclasses.replace(
        target,
        environment=layout.environment,
        directory=layout.directory,
        harness={**target.harness, **harness_of(programs)},
    )


def _noted(manifest: Mapping[str, Any]) -> Target:
    """What a manifest says that is to be proven."""
    cell = manifest["cell"]
    return Target(
        identifier=manifest["image"],
        arch=cell["arch"],
        environment={},
        mpi=cell.get("mpi", NONE),
        harness=harness_of(manifest.get("inputs", {}).get("specs", {})),
        indices=states_in(manifest.get("inputs", {})),
        checks=tuple(
            InImageCheck(
                name=check["name"],
                script=check["script"],
                needs=tuple(check["needs"]),
                timeout_s=check["timeout_s"],
                asked=AskedRanks(**check.get("asked", {})),  # earlier versions noted none
            )
            for check in manifest["in_image_checks"]
        ),
    )


def check_cell(manifest: Mapping[str, Any], layout: Layout) -> None:
    """Hold a manifest's cell against what the image says of itself; raises `BadInput`."""
    cell, labels = manifest["cell"], labels_of(layout)
    names = {one.oci: name for name, one in facts.ARCHITECTURES.items()}
    family, _ = split_mpi(cell.get("mpi", NONE))
    noted = {
        "architecture": (cell["arch"], names.get(layout.architecture, layout.architecture)),
        "identifier": (manifest["image"], labels.get("build-images.identifier")),
        "MPI": (family, labels.get("build-images.mpi", family).partition(" ")[0]),
    }
    for what, (said, found) in noted.items():
        if found not in {said, None}:
            raise BadInput(
                f"{manifest['image']}: the image's {what} is {found}, and {MANIFEST} says {said}"
            )
