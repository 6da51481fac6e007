"""Verify an image's ranks, each in a container that this host's launcher starts.

Results are added to those of earlier verifications: outcomes under `launched` in the manifest, and
separate evidence files for each outcome.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import platform
import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder import facts
from builder.artifacts.manifests import write_manifest
from builder.build.engines import Tools
from builder.build.run import Run, now
from builder.load.facts import known_facts
from builder.model import FAILED, SKIPPED, Artifact, Outcome
from builder.model.errors import BadInput, MissingPrerequisite, StepFailed
from builder.model.manifest import FILES, Manifest
from builder.model.measurement import HostFacts
from builder.model.package_indices import states_in
from builder.model.versions import split_mpi
from builder.system.process import Completed
from builder.verify.container_output import LONGEST, readable
from builder.verify.evidence import RunEvidence, StartedBy, write_evidence
from builder.verify.finished_images import (
    read_finished,
    subjects,
    with_emulation,
    within_reach,
)
from builder.verify.formats import tree_of_artifact
from builder.verify.proof import emulator_of
from builder.verify.ranks import launchers
from builder.verify.ranks.launchers import ImageMpi, Launcher, Start, Unfit
from builder.verify.ranks.library import BoundLibrary, bound_library
from builder.verify.ranks.outcomes import GRACE_S, rank_outcome
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import Around, Container, Kind, readable_folder

LAUNCHED = ("apptainer", "charliecloud")  # an ordinary user can start these on every node
CHECK = "mpi"  # the ranks run the program of this check
PROGRAM = "/opt/build-images/bin/mpi"
_NO_GPU = "its program needs none"
_SLACK_S = 15.0
_KILL_AFTER_S = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """The updated manifest, and the new outcomes by format; `emulated` if any rank was."""

    manifest: Manifest
    outcomes: Mapping[str, Sequence[Outcome]]
    emulated: bool

    @property
    def exit_code(self) -> int:
        """1 if ranks failed, 4 if this machine could not start some of them, else 0."""
        outcomes = [each.outcome for group in self.outcomes.values() for each in group]
        if FAILED in outcomes:
            return 1
        return MissingPrerequisite.exit_code if SKIPPED in outcomes else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """An artifact, the MPI in it, its runner, and the way in which its ranks are started.

    `has_program` says whether the image has the check `mpi`, whose program the ranks run.
    """

    arch: str
    kind: Kind
    artifact: Path
    mpi: ImageMpi | None
    has_program: bool
    start: Start


def verify_launched(
    run: Run, project: Path, folder: Path, starts: Sequence[Start], runners: Sequence[str] = ()
) -> Launched:
    """Start an image's ranks in each of the requested ways, with each of the `runners`.

    What this machine cannot start is reported but not recorded: it proves nothing about the image.
    """
    manifest = read_finished(folder)
    outcomes: dict[str, list[Outcome]] = {}
    evidence: list[str] = []
    programs: dict[str, str] = {}
    emulated: dict[str, bool] = {}
    with readable_folder(run.tools.home.work, "verify-") as work:
        artifacts = _artifacts(manifest, runners, folder, work)
        for ranks in _all_ranks(project, starts, manifest, artifacts):
            form, started = ranks.kind.format, now()
            run.progress.step(manifest.image, f"{ranks.start.check} in {ranks.kind.program}")
            outcome, started_by = verify_ranks(ranks, work=work, tools=run.tools)
            outcomes.setdefault(form, []).append(outcome)
            if outcome.outcome == SKIPPED:
                continue
            if form not in programs:
                programs[form] = program_digest(artifacts[form], work=work, tools=run.tools)
            host, emulator = _host(run, ranks, started_by)
            emulated[f"{form}-{outcome.check}"] = bool(emulator)
            program = ranks.kind.program
            record = RunEvidence(
                identifier=manifest.image,
                artifacts=subjects(manifest, artifacts[form]),
                outcomes=[outcome],
                scripts={outcome.check: programs[form]} if programs[form] else {},
                format=form,
                runner=program,
                runner_version=run.versions.get(program, ""),
                host=host,
                started=started,
                finished=now(),
                emulator=emulator,
                launcher=started_by,
                no_gpu=_NO_GPU,
                tools=run.versions,
                indices=states_in(manifest.inputs),
            )
            evidence.append(write_evidence(folder, f"{form}-{outcome.check}", record))
    updated = _updated(manifest, outcomes, evidence, emulated)
    if evidence:
        updated = write_manifest(folder, updated, evidence)
    return Launched(manifest=updated, outcomes=outcomes, emulated=any(emulated.values()))


def _artifacts(
    manifest: Manifest, runners: Sequence[str], folder: Path, work: Path
) -> dict[str, Artifact]:
    """Return the requested artifacts of a manifest; at a site, some of them may be missing.

    Raises `BadInput` if an artifact of `runners` is missing, or if there is none at all.
    """
    formats = [RUNNERS[name].format for name in runners or LAUNCHED]
    present = [
        name for name in formats if name in manifest.artifacts and (folder / FILES[name]).exists()
    ]
    missing = [FILES[name] for name in formats if name not in present]
    if missing and (runners or not present):
        raise BadInput(f"{folder}: missing: {', '.join(missing)}")
    return {name: within_reach(name, manifest.artifacts[name], folder, work) for name in present}


def _all_ranks(
    project: Path, starts: Sequence[Start], manifest: Manifest, artifacts: Mapping[str, Artifact]
) -> Iterator[Ranks]:
    check = next((each for each in manifest.in_image_checks if each.name == CHECK), None)
    mpi, timeout_s = _image_mpi(project, manifest.cell.mpi), check.timeout_s if check else 0
    kinds = [RUNNERS[name] for name in LAUNCHED if RUNNERS[name].format in artifacts]
    for kind, start in itertools.product(kinds, starts):
        yield Ranks(
            arch=manifest.cell.arch,
            kind=kind,
            artifact=artifacts[kind.format].path,
            mpi=mpi,
            has_program=check is not None,
            start=dataclasses.replace(start, timeout_s=start.timeout_s or timeout_s),
        )


def _image_mpi(project: Path, value: str) -> ImageMpi | None:
    """Return the MPI of an axis value such as `openmpi5.0`; None if the value names no MPI."""
    name, version = split_mpi(value)
    family = facts.MPI_FAMILIES.get(name)
    if family is None:
        return None
    series = known_facts(project).mpi_series(name, version)
    return ImageMpi(
        family=family,
        version=version,
        soname=series.soname if series else family.sonames[0],
        pmix=series.pmix if series else "",
    )


def program_digest(artifact: Artifact, *, work: Path, tools: Tools) -> str:
    """Return the SHA-256 of the ranks' program in an artifact.

    Empty if the program is missing, or if this machine cannot read the artifact.
    """
    below = posixpath.dirname(PROGRAM[1:])
    try:
        tree = tree_of_artifact(artifact.format, artifact.path, work=work, tools=tools, below=below)
    except (StepFailed, MissingPrerequisite):
        return ""
    entry = tree.entries.get(PROGRAM[1:])
    return entry.content if entry else ""


def _host(run: Run, ranks: Ranks, started_by: StartedBy) -> tuple[HostFacts, str]:
    """Return the machine to record, preferably one that emulated, and the emulator."""
    machines, emulator = [*started_by.machines.values()], emulator_of(run, ranks.arch)
    if not machines:
        return run.host, emulator
    foreign = [machine for machine in machines if machine.arch != ranks.arch]
    return (foreign or machines)[0], (emulator or "qemu") if foreign else ""


def _updated(
    manifest: Manifest,
    outcomes: Mapping[str, Sequence[Outcome]],
    evidence: Sequence[str],
    emulated: Mapping[str, bool],
) -> Manifest:
    """Return the manifest in which these outcomes replace earlier ones of the same names.

    `emulated` tells for each outcome, by format and check, whether its ranks were emulated.
    """
    launched = dict(manifest.launched or {})
    for name, group in outcomes.items():
        tried = {outcome.check: outcome for outcome in group if outcome.outcome != SKIPPED}
        earlier = [each for each in launched.get(name, ()) if each.check not in tried]
        launched[name] = (*earlier, *tried.values())
    return dataclasses.replace(
        with_emulation(manifest, manifest, emulated),
        launched=launched,
        evidence=tuple(sorted({*manifest.evidence, *evidence})),
    )


# ---- One launch ----


def verify_ranks(ranks: Ranks, *, work: Path, tools: Tools) -> tuple[Outcome, StartedBy]:
    """Start ranks and judge their output; skipped if this host cannot start them.

    Also return the launcher, even if it could not start the ranks.
    """
    start = ranks.start
    started_by = StartedBy(name=start.launcher, ranks=start.ranks, nodes=start.nodes)
    try:
        mpi = _startable(ranks)
        launcher = launchers.find(start, mpi, tools)
        started_by = dataclasses.replace(
            started_by,
            product=launcher.product,
            version=launcher.version,
            command=shlex.join(launcher.command),
        )
        with contextlib.ExitStack() as stack:
            library = None
            if start.bind:
                bound = bound_library(start.bind, mpi, launcher, work=work, tools=tools)
                library = stack.enter_context(bound)
            done = _run(ranks, mpi, launcher, library, work=work, tools=tools)
    except (Unfit, StepFailed) as error:
        result, reason = SKIPPED, str(error)
        if isinstance(error, StepFailed):
            cause = error.tail[-1] if error.tail else error.message
            result, reason = FAILED, f"the container could not be unpacked: {cause}"
        reason = readable(reason[:LONGEST])
        return Outcome(check=start.check, outcome=result, reason=reason), started_by
    argv = done.argv[done.argv.index(launcher.command[0]) :]
    tuning = launchers.tuning(launchers.environment(tools))
    outcome = rank_outcome(start, launcher, library, done, tuning=tuning)
    by_host = outcome.data.get("ranks_by_host")
    hosts = {*by_host} if isinstance(by_host, dict) else set()
    machines = launchers.machines(launcher, tools) if hosts else {}
    if machines.keys() != hosts:
        machines = {}  # these are not the machines that the ranks ran on
    return outcome, dataclasses.replace(started_by, command=shlex.join(argv), machines=machines)


def _startable(ranks: Ranks) -> ImageMpi:
    mpi, bind, machine = ranks.mpi, ranks.start.bind, platform.machine()
    if mpi is None:
        raise Unfit("the image has no MPI")
    if not ranks.has_program:
        raise Unfit("the image has no check mpi, whose program the ranks would run")
    if mpi.family.host_only and not bind:
        raise Unfit(f"the image has no MPI of its own: bind the host's {mpi.title}")
    if bind and ranks.arch != machine:
        raise Unfit(f"the image is for {ranks.arch}, but the host's MPI is for {machine}")
    return mpi


def _run(
    ranks: Ranks,
    mpi: ImageMpi,
    launcher: Launcher,
    library: BoundLibrary | None,
    *,
    work: Path,
    tools: Tools,
) -> Completed:
    """Run all ranks until they end.

    Each rank ends itself at its time limit and reports what it waits for; if it cannot, `timeout`
    ends it. The launcher has twice that time, since it may have to wait for nodes.
    """
    seconds = ranks.start.timeout_s
    limit = ("timeout", f"--kill-after={_KILL_AFTER_S}", str(seconds + GRACE_S))
    around = Around(
        command=(*launcher.command, *launchers.WITHOUT_TOKENS, *limit),
        environment=launchers.environment(tools),
    )
    own = (PROGRAM, "-t", str(seconds), str(ranks.start.ranks))
    argv = library.program(*own, "single") if library else (*own, "multiple", mpi.library)
    mounts = library.mounts if library else {}
    container = Container(
        artifact=ranks.artifact, work=work, tools=tools, around=around, mounts=mounts
    )
    done = None
    try:
        with ranks.kind.open(container) as runner:
            done = runner.run(argv, timeout_s=2 * seconds + _SLACK_S)
        return done
    finally:
        if not done or done.timed_out or done.returncode:
            launchers.cancel(launcher, tools.home)
