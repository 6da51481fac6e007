"""Verify artifacts: compare their trees, run the checks in every format, write evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from builder.build.run import Run, now
from builder.model import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.model.agreement import formats_not_run
from builder.model.digests import digest_of_file
from builder.model.errors import MissingPrerequisite, StepFailed
from builder.model.manifest import InImageCheck, ProvenImage, required_runs
from builder.model.measurement import HostFacts
from builder.system.host_facts import host_facts, lost_gpus
from builder.verify.checks import (
    after_a_loss,
    all_failed,
    not_started,
    noting_no_gpu,
    outcome_of,
    outcomes_in,
    passed,
    why_no_gpu,
)
from builder.verify.container_output import LONGEST
from builder.verify.evidence import RunEvidence, images_own, write_evidence
from builder.verify.formats import FormatTree, compared, read_formats
from builder.verify.preparation import machines_fault, not_tried
from builder.verify.runners import DEFAULTS, RUNNERS
from builder.verify.runners.protocol import Container, Kind
from builder.verify.targets import (
    ProofTarget,
    altered_harness,
    carried_harness,
    lacking_mpi,
    with_carried,
)

Record = TypeVar("Record", bound=ProvenImage)
# Runs an image's checks; raises `MissingPrerequisite` if this machine cannot. The evidence is
# without the outcomes that all runs share.
StartRun = Callable[[ProofTarget], RunEvidence]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified(Generic[Record]):
    """The result of a verification: `runs` are the executed runs, by name.

    `untried` says what this machine lacks for each of the other runs. They prove nothing about the
    image, and `record` keeps their earlier outcomes. `tree` is that of the OCI layout, if read.
    """

    record: Record
    runs: tuple[str, ...]
    untried: Mapping[str, str]
    tree: FormatTree | None = None

    @property
    def has_failed(self) -> bool:
        """True if a check of these runs failed."""
        return not all(passed(self.record.checks[name]) for name in self.runs)


def prove(
    run: Run,
    target: ProofTarget,
    artifacts: Mapping[str, Artifact],
    *,
    work: Path,
    folder: Path,
    runners: Sequence[str] = (),
    runs: Mapping[str, StartRun] | None = None,
) -> Verified[ProvenImage]:
    """Verify an image's artifacts; evidence goes to `folder`/evidence, two files per run.

    All artifacts are read and compared. The checks are run by `runners`, or by the usual runner of
    each format; or `runs` has the ways to run them, by the names of the runs. Raises
    `MissingPrerequisite`, and writes nothing, if this machine can run none of the checks.
    """
    run.progress.step(target.identifier, f"reading the trees of {', '.join(artifacts)}")
    paths = {name: artifact.path for name, artifact in artifacts.items()}
    image = read_formats(paths, arch=target.arch, work=work, tools=run.tools)
    trees = image.trees
    proven = {name: _proven(artifact, trees.get(name)) for name, artifact in artifacts.items()}
    target = with_carried(target, trees.values())
    equal = compared(image, has_checks=bool(target.checks))
    harness = carried_harness(next(iter(trees.values()))) if trees else {}
    equal = dataclasses.replace(equal, data={"harness": harness})
    shared = (equal, *altered_harness(target, trees))
    runs = runs or {
        kind.run_name: partial(_run, run, kind=kind, artifact=paths[kind.format], work=work)
        for kind in (RUNNERS[name] for name in runners or [DEFAULTS[name] for name in artifacts])
    }
    untried: dict[str, str] = {}
    done: dict[str, RunEvidence] = {}
    for name, start in runs.items():
        try:
            evidence = start(target)
        except MissingPrerequisite as error:
            untried[name] = str(error.args[0])
            continue
        done[name] = dataclasses.replace(
            evidence,
            artifacts=list(proven.values()),
            outcomes=(*shared, *evidence.outcomes),
            scripts=_scripts(target, trees.get(evidence.format)),
        )
    if not done:
        raise not_tried(target.identifier, untried)
    files = tuple(write_evidence(folder, name, evidence) for name, evidence in done.items())
    emulated = tuple(sorted(name for name, evidence in done.items() if evidence.emulator))
    record = ProvenImage(
        image=target.identifier,
        artifacts=in_folder(proven),
        tree_digest=next(iter(proven.values())).tree_digest,
        formats_equal=None if equal.outcome == SKIPPED else equal.outcome == PASSED,
        emulated=bool(emulated),
        emulated_runs=emulated,
        in_image_checks=target.checks,
        tools=run.versions,
        checks={name: tuple(evidence.outcomes) for name, evidence in done.items()},
        outcome="",
        evidence=files,
    )
    return Verified(record=judged(record), runs=tuple(done), untried=untried, tree=trees.get("oci"))


def judged(record: Record) -> Record:
    """Return a record with the outcome of its runs, and whether they prove it on a GPU."""
    outcome = "built" if formats_not_run(record) else "verified"
    if not all(passed(record.checks[name]) for name in required_runs(record.checks)):
        outcome = "failed"
    return dataclasses.replace(record, outcome=outcome, proven_on_gpu=_proven_on_gpu(record))


def _proven_on_gpu(record: ProvenImage) -> bool | None:
    """Return whether each format is proven on a GPU; None if the image has no such check."""
    formats = formats_on_gpus(record)
    return bool(formats) and record.artifacts.keys() <= formats if record.gpu_checks else None


def formats_on_gpus(record: ProvenImage) -> set[str]:
    """Return the formats of which GPU checks passed in some run; none if one failed in any run.

    The negative control is not one of the image's checks: if it failed, the others prove nothing.
    """
    formats, on_gpu, gpu = set[str](), False, record.gpu_checks
    for name, outcomes in record.checks.items():
        own = [each for each in outcomes if each.check in gpu]
        results = {SKIPPED if each.lacked_gpu else each.outcome for each in own if each.applies}
        if FAILED in {one.outcome for one in outcomes if one.check in {*gpu, WITHHELD_CHECK}}:
            return set()
        if own and SKIPPED not in results:
            formats.add(name.partition("-")[0])
        on_gpu = on_gpu or PASSED in results
    return formats if on_gpu else set()


def _proven(artifact: Artifact, tree: FormatTree | None) -> Artifact:
    """Return an artifact with the digests read now, since it may have been damaged."""
    if tree is None:
        return dataclasses.replace(
            artifact, digest=artifact.digest or digest_of_file(artifact.path)
        )
    digest = artifact.digest or tree.artifact
    return dataclasses.replace(artifact, digest=digest, tree_digest=tree.digest)


def _run(run: Run, target: ProofTarget, *, kind: Kind, artifact: Path, work: Path) -> RunEvidence:
    """Run an image's checks with one runner.

    Raises `MissingPrerequisite` if this machine cannot.
    """
    run.progress.step(target.identifier, f"verifying in {kind.program}")
    started, no_gpu = now(), why_no_gpu(target, kind, host=run.host, tools=run.tools)
    container = Container(
        artifact=artifact, work=work, tools=run.tools, directory=target.directory, gpu=not no_gpu
    )
    failure = None
    try:
        outcomes = outcomes_of(target, kind, container)
    except StepFailed as error:
        failure, outcomes = error, not_started(target, error)
    if fault := machines_fault(kind, container, target.arch, outcomes, failure):
        raise MissingPrerequisite(fault)
    version = run.versions.get(kind.program) or run.tools.version(kind.program)
    return concluded(
        run,
        target,
        outcomes,
        host_facts(),
        RunEvidence(
            identifier=target.identifier,
            artifacts=(),
            outcomes=(),
            format=kind.format,
            runner=kind.program,
            runner_version=version,
            host=run.host,
            started=started,
            finished=now(),
            emulator="",
            no_gpu=no_gpu,
            tools=run.versions,
        ),
    )


def outcomes_of(target: ProofTarget, kind: Kind, container: Container) -> tuple[Outcome, ...]:
    """Run an image's checks in a container, and the negative control in a second one."""
    with kind.open(container) as runner:
        outcomes = outcomes_in(target, kind, runner, gpu=container.gpu)
    return outcomes + withheld(target, kind, container)


def concluded(
    run: Run,
    target: ProofTarget,
    outcomes: tuple[Outcome, ...],
    after: HostFacts,
    evidence: RunEvidence,
) -> RunEvidence:
    """Return the evidence of a run with its outcomes; `after` is the run's host at its end."""
    outcomes += lacking_mpi(target)
    if missing_gpus := lost_gpus(run.host, after):
        outcomes = after_a_loss(outcomes, target, missing_gpus)
    if evidence.no_gpu:
        outcomes = noting_no_gpu(outcomes, target)
    return dataclasses.replace(
        evidence,
        outcomes=outcomes,
        emulator=emulator_of(run, target.arch, seen_arch(outcomes, target.arch)),
        launcher=images_own(outcomes),
        indices=target.indices,
    )


def emulator_of(run: Run, *archs: str) -> str:
    """Return the emulator, if one of these architectures is foreign to this machine."""
    is_foreign = any(arch != run.host.arch for arch in archs)
    return f"qemu {run.versions.get('qemu', '')}".strip() if is_foreign else ""


def _scripts(target: ProofTarget, tree: FormatTree | None) -> dict[str, str]:
    entries = tree.entries if tree else {}
    contents = {path: entry.content for path, entry in entries.items() if entry.content}
    paths = {check.name: check.script.lstrip("/") for check in target.checks}
    return {name: contents[path] for name, path in paths.items() if path in contents}


def seen_arch(outcomes: Iterable[Outcome], arch: str) -> str:
    """Return the architecture that programs saw (`uname`), or else `arch`, the image's."""
    seen = (str(outcome.data["uname"]) for outcome in outcomes if "uname" in outcome.data)
    return next(seen, arch)


def in_folder(artifacts: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Return artifacts as manifests hold them: their paths are relative to the image's folder."""
    return {
        name: dataclasses.replace(artifact, path=Path(artifact.path.name))
        for name, artifact in artifacts.items()
    }


WITHHELD_CHECK = "gpu-withheld"
_CONTROL = "gpu-control"
_FOUND = "gpu-found"  # passes where the driver gives a GPU
_SCRIPT = "/opt/build-images/src/gpu-control.sh"


def withheld(target: ProofTarget, kind: Kind, container: Container) -> tuple[Outcome, ...]:
    """Run the program of `gpu-control` in a second container, without GPUs; return its outcome.

    No outcome if `container` has no GPUs either, since `gpu-control` then ran without them, or if
    the image has no such check. Skipped if GPUs are visible although they were not passed: if
    NVIDIA's runtime is Docker's default, all images that request GPUs by their variables get them.
    """
    checks = {check.name: check for check in target.checks}
    if not container.gpu or _CONTROL not in checks:
        return ()
    script = InImageCheck(
        name=WITHHELD_CHECK, script=_SCRIPT, needs=(), timeout_s=checks[_CONTROL].timeout_s
    )
    try:
        with kind.open(dataclasses.replace(container, gpu=False)) as runner:
            search = outcome_of(checks[_FOUND], runner) if _FOUND in checks else None
            if search and search.outcome == PASSED:
                reason = f"not judged: GPUs are visible without being passed: {search.reason}"
                return (Outcome(check=WITHHELD_CHECK, outcome=SKIPPED, reason=reason[:LONGEST]),)
            return (outcome_of(script, runner, ["sh", _SCRIPT, "start"]),)
    except StepFailed as error:
        return all_failed([WITHHELD_CHECK], "a container without GPUs could not be started", error)
