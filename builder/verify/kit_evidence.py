"""Evidence of kits: what the program of a kit wrote on a node, judged and added to the image.

The commands' output is replayed to the code that judges those of this machine, so a check passes
here if and only if it would pass there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from builder.build.run import Run, now
from builder.model import FAILED, NONE, PASSED
from builder.model.agreement import WORST_LAST
from builder.model.errors import BadInput, Refused
from builder.model.exact_json import member, parsed, time_of
from builder.model.manifest import Manifest, ProvenImage
from builder.model.measurement import HostFacts
from builder.model.records import read
from builder.system.files import read_json, read_regular
from builder.system.process import Completed
from builder.verify.checks import passed, why_no_gpu
from builder.verify.evidence import KitRun, RunEvidence
from builder.verify.finished_images import opened, prove_again, read_finished
from builder.verify.kits import Kit, KitStep, container_of, kit_named, steps_of
from builder.verify.measure.rounds import against_bare
from builder.verify.proof import Verified, concluded, outcomes_of
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import Container
from builder.verify.targets import ProofTarget, expected_target

_SCHEMA = "build-images/kit-evidence/v1"
_MOST_BYTES = 64 << 20  # of the file
_MOST_VALUES = 8_000_000  # in it; commas of output count, too
_MOST_LETTERS = 1 << 20  # of a stream; the kit keeps no more
_LONGEST_FACT, _LONGEST_NAME = 500, 40
_STATUSES = range(-64, 256)
_CLOCKS_DIFFER = dt.timedelta(days=1)
_CLOCK_AHEAD = dt.timedelta(minutes=5)  # sites refuse evidence that is later than that
_LONGEST_S = 1e7  # of a command
_SLACK_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineVersion:
    """The engine that ran the image on the node."""

    name: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """Further facts about the node; see `KitRun`."""

    name: str
    fabric: tuple[str, ...]
    mpi: str
    nvidia_smi: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """The end of a command on the node."""

    argv: tuple[str, ...]
    without_gpu: bool
    status: int
    timed_out: bool
    waiting: tuple[str, ...]
    seconds: float
    stdout: str
    stderr: str

    @property
    def key(self) -> tuple[tuple[str, ...], bool]:
        """As in `KitStep`."""
        return self.argv, self.without_gpu

    @property
    def completed(self) -> Completed:
        """The end as of a command of this machine."""
        return Completed(
            argv=self.argv,
            returncode=self.status,
            stdout=self.stdout,
            stderr=self.stderr,
            duration_s=self.seconds,
            timed_out=self.timed_out,
            waiting=self.waiting,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramResult(StepResult):
    """The end of a measured program, in a container or `bare`."""

    program: str
    round: int
    bare: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class KitEvidence:
    """The file that a kit's program writes; `sha256` is that of all the rest."""

    schema: str
    kit: str
    image: str
    format: str
    artifact: str
    proves: str
    engine: EngineVersion
    no_gpu: str
    started: str
    finished: str
    host: HostFacts
    gpus_after: tuple[str, ...]
    node: NodeFacts
    steps: tuple[StepResult, ...]
    sha256: str
    programs: tuple[ProgramResult, ...] = ()

    @property
    def results(self) -> tuple[StepResult, ...]:
        """All commands."""
        return (*self.steps, *self.programs)

    @property
    def run_name(self) -> str:
        """The name of the run: one for each node and engine, which a later one replaces."""
        lower = self.node.name.lower()
        node = re.sub(r"[^a-z0-9]+", "-", lower)[:_LONGEST_NAME].strip("-")
        if node != lower:  # another node's name may be the same now
            node = f"{node}-{hashlib.sha256(lower.encode()).hexdigest()[:8]}".strip("-")
        return f"{self.format}-kit-{self.engine.name}-{node}"


def import_evidence(
    run: Run, folder: Path, file: Path
) -> Verified[Manifest] | Verified[ProvenImage]:
    """Judge the evidence of a kit, and add it to the image in an output folder.

    That of a kit without the image proves the node, and is not recorded.
    Raises `BadInput` for a file that is not such evidence, and `Refused` for evidence that is not
    of a kit of this image, was changed, or is older than the recorded run of that node.
    """
    evidence, manifest = read_evidence(file), read_finished(folder)
    kit = kit_named(evidence.kit, folder)
    for fault in _faults(evidence, kit, manifest):
        raise Refused(f"{file}: {fault}")
    if kit.checks_only:
        return _of_node(run, folder, kit, evidence, file)
    name = evidence.run_name
    _check_newer(file, evidence, folder / "evidence" / f"{name}.json")
    start = partial(_replayed, run, kit, evidence, file)
    expected = expected_target(run.settings.project, manifest)
    done = prove_again(run, folder, expected=expected, runs={name: start})
    for line in _worse(manifest, done.record, name):
        run.progress.say(line)
    return done


def _of_node(
    run: Run, folder: Path, kit: Kit, evidence: KitEvidence, file: Path
) -> Verified[ProvenImage]:
    """Judge the evidence of a kit without the image."""
    named = {step.check for step in kit.steps}
    with opened(
        folder, run.tools, expected_target(run.settings.project, read_finished(folder))
    ) as image:
        checks = tuple(check for check in image.target.checks if check.name in named)
        target = dataclasses.replace(image.target, checks=checks, mpi=NONE)
    done = _replayed(run, kit, evidence, file, target)
    outcomes = tuple(done.outcomes)
    run.progress.say("the kit has no image: this proves the node, and nothing was recorded")
    name = evidence.run_name
    record = ProvenImage(
        image=f"{evidence.node.name}, by the checks of {kit.image}",
        outcome="passed" if passed(outcomes) else FAILED,
        artifacts={},
        emulated=bool(done.emulator),
        checks={name: outcomes},
        in_image_checks=checks,
    )
    return Verified(record=record, runs=(name,), untried={})


def read_evidence(file: Path) -> KitEvidence:
    """Read the evidence of a kit; raises `BadInput` if it is malformed, or `Refused` if changed."""
    try:
        document = parsed(read_regular(file, _MOST_BYTES, follow=True), most=_MOST_VALUES)
        evidence = read(KitEvidence, document)
        fault = _malformed(evidence)
    except (OSError, ValueError) as error:
        fault = str(error)
    if fault:
        hint = "name the file that `run` of a kit wrote"
        raise BadInput(f"{file}: not the evidence of a kit: {fault}", hint=hint)
    del document["sha256"]
    text = json.dumps(document, sort_keys=True)
    if hashlib.sha256(text.encode()).hexdigest() != evidence.sha256:
        raise Refused(f"{file}: it was changed after the kit wrote it")
    return evidence


def _malformed(evidence: KitEvidence) -> str:
    """Return why a value is impossible; empty if none is. Raises `ValueError` for times."""
    if evidence.schema != _SCHEMA:
        return f"schema: expected {_SCHEMA}"
    time_of(evidence.started), time_of(evidence.finished)
    host, node = evidence.host, evidence.node
    texts = (
        *(evidence.engine.version, evidence.no_gpu, host.arch, host.kernel, host.cpu, host.os),
        *(host.driver, *host.gpus, *evidence.gpus_after, node.name, *node.fabric, node.mpi),
        *(*node.nvidia_smi, *(line for step in evidence.results for line in step.waiting)),
    )
    if any(not text.isprintable() or len(text) > _LONGEST_FACT for text in texts):
        return f"a fact about the machine is not one line of at most {_LONGEST_FACT} characters"
    if not (host.arch and host.kernel and host.cpu and host.os and node.name and host.cores > 0):
        return "a fact about the machine is missing"
    if any(max(map(len, (step.stdout, step.stderr))) > _MOST_LETTERS for step in evidence.results):
        return "the output of a step is too long"
    if any(
        step.status not in _STATUSES or not 0 <= step.seconds < _LONGEST_S
        for step in evidence.results
    ):
        return "the status or the time of a step is impossible"
    return ""


def _faults(evidence: KitEvidence, kit: Kit, manifest: Manifest) -> Iterator[str]:
    """Yield why evidence does not belong to a kit, or the kit to the image that is here."""
    if evidence.image != kit.image or kit.image != manifest.image:
        yield f"it is about {evidence.image[:100]}, and this image is {manifest.image}"
    current = {name: artifact.digest for name, artifact in manifest.artifacts.items()}
    own = {} if kit.checks_only else kit.artifacts
    packed = {"oci": kit.oci, **{name: one.digest for name, one in own.items()}}
    if kit.content_key != manifest.content_key or packed.items() - current.items():
        yield "the image was built or packed again after the kit was made"
    engine, artifact = kit.engines.get(evidence.engine.name), kit.artifacts.get(evidence.format)
    if engine is None or artifact is None or engine.format != evidence.format:
        yield f"the kit has no {evidence.format[:40]} for the engine {evidence.engine.name[:40]}"
    elif evidence.proves != ("the node" if kit.checks_only else "the image"):
        yield f"it says that it proves {evidence.proves[:40]}"
    elif evidence.artifact != artifact.digest:
        yield f"it ran {evidence.artifact[:80]}, and the kit has {artifact.digest}"
    runs = [(each.program, each.argv, each.round, each.bare) for each in evidence.programs]
    known = {(program.name, program.argv) for program in kit.programs}
    if len({*runs}) < len(runs) or {run[:2] for run in runs} - known:
        yield "it measured programs that the kit does not, or one twice in a round"
    started, finished_at = time_of(evidence.started), time_of(evidence.finished)
    latest = dt.datetime.now(tz=dt.timezone.utc) + _CLOCK_AHEAD
    if not time_of(kit.created) - _CLOCKS_DIFFER <= started <= finished_at <= latest:
        times = f"it ran from {evidence.started} to {evidence.finished} by the node's clock"
        yield f"impossible times: {times}; the kit was created at {kit.created}, here it is {now()}"
    seconds = sum(step.seconds for step in evidence.results)
    if seconds > (finished_at - started).total_seconds() + _SLACK_S:
        yield "its steps took longer than the run"


def _check_newer(file: Path, evidence: KitEvidence, recorded: Path) -> None:
    """Raise `Refused` if a newer run of the same node is recorded."""
    try:
        run = member(read_json(recorded), "predicate", "configuration", 0, "annotations")
        started = time_of(run["started"])
    except (LookupError, TypeError, ValueError):
        return
    if time_of(evidence.started) < started:
        raise Refused(f"{file}: it is older than the recorded run of {evidence.node.name}")


def _replayed(
    run: Run, kit: Kit, evidence: KitEvidence, file: Path, target: ProofTarget
) -> RunEvidence:
    """Judge the output of the commands, with the code that judges those of this machine."""
    by_program = {kind.program: kind for kind in RUNNERS.values()}
    is_usual = evidence.engine.name in by_program
    usual = by_program.get(evidence.engine.name, RUNNERS["charliecloud"])

    @contextlib.contextmanager
    def replay(container: Container) -> Iterator[_Replay]:
        is_second = container.gpu is bool(no_gpu)
        yield _Replay({key[0]: done for key, done in results.items() if key[1] is is_second})

    kind = dataclasses.replace(
        usual,
        format=evidence.format,
        open=replay,
        no_gpu=lambda _: evidence.no_gpu,
        own=usual.own if is_usual else ("LD_LIBRARY_PATH",),
        program=usual.program if is_usual else "user namespaces",
    )
    no_gpu = why_no_gpu(target, kind, host=evidence.host, tools=run.tools)
    expected = steps_of(target, run.tools)
    for fault in _step_faults(evidence, kit, expected, gpu=not no_gpu):
        raise Refused(f"{file}: {fault}")
    results = {step.key: step.completed for step in evidence.steps}
    outcomes = outcomes_of(target, kind, container_of(run.tools, gpu=not no_gpu))
    gpu_checks = {check.name for check in target.checks if check.needs_gpu}
    used = [one.check for one in outcomes if one.check in gpu_checks and one.outcome == PASSED]
    if used and not no_gpu and not evidence.host.gpus:
        raise Refused(f"{file}: {', '.join(used)} passed, and the node had no GPU")
    if all(outcome.outcome == FAILED for outcome in outcomes):
        raise Refused(f"{file}: no check passed, so the fault may be the node's")
    ran = [(each.program, each.round, each.bare, each.completed) for each in evidence.programs]
    outcomes += against_bare(ran, evidence.format)
    versions = {kind.program: evidence.engine.version}
    return concluded(
        dataclasses.replace(run, host=evidence.host, versions=versions),
        target,
        outcomes,
        dataclasses.replace(evidence.host, gpus=evidence.gpus_after),
        RunEvidence(
            identifier=target.identifier,
            artifacts=(),
            outcomes=(),
            format=evidence.format,
            runner=kind.program,
            runner_version=evidence.engine.version,
            host=evidence.host,
            started=time_of(evidence.started).isoformat(timespec="seconds"),
            finished=time_of(evidence.finished).isoformat(timespec="seconds"),
            emulator="",
            no_gpu=no_gpu,
            tools=versions,
            kit=KitRun(
                kit=evidence.kit,
                node=evidence.node.name,
                imported=now(),
                fabric=evidence.node.fabric,
                mpi=evidence.node.mpi,
                nvidia_smi=evidence.node.nvidia_smi,
            ),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Replay:
    """A runner that returns the recorded ends of commands."""

    results: Mapping[tuple[str, ...], Completed]

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        del timeout_s
        return self.results[tuple(argv)]


def _step_faults(
    evidence: KitEvidence, kit: Kit, expected: Sequence[KitStep], *, gpu: bool
) -> Iterator[str]:
    """Yield how the commands differ from those that this project runs for the image."""
    if kit.steps != expected:
        yield "the checks of the image changed after the kit was made"
    asked = [step for step in expected if gpu or not step.without_gpu]
    ran = [step.key for step in evidence.steps]
    names = {step.key: step.check for step in expected}
    if more := [key for key in ran if key not in names]:
        yield f"the image has no check that runs {' '.join(more[0][0])[:100]}"
    if ran != [step.key for step in asked]:
        absent = sorted({step.check for step in asked if step.key not in ran})
        yield f"its steps are not those of the kit; missing: {', '.join(absent) or 'none'}"
    ends = [(s.check, s.timeout_s, end) for s, end in zip(asked, evidence.steps, strict=False)]
    programs = {program.name: program for program in kit.programs}
    for each in evidence.programs:
        if programs[each.program].needs_gpu and not (gpu and evidence.host.gpus):
            yield f"{each.program} was measured, and the node had no GPU for it"
        ends.append((each.program, programs[each.program].timeout_s, each))
    for name, least, result in ends:
        most = least + _SLACK_S
        if result.seconds < least if result.timed_out else result.seconds > most:
            yield f"{name} took {result.seconds} s, and its limit is {least} s"


def _worse(before: Manifest, after: Manifest, run: str) -> Iterator[str]:
    """Yield how a run is worse than the one that it replaces."""
    earlier = {each.check: each.outcome for each in before.checks.get(run, ())}
    for name in sorted(earlier.keys() - {each.check for each in after.checks[run]}):
        yield f"{run}: {name} did not run; it was {earlier[name]} in the run that this one replaces"
    for each in after.checks[run]:
        old = earlier.get(each.check, each.outcome)
        if WORST_LAST.index(each.outcome) > WORST_LAST.index(old):
            yield f"{run}: {each.check} was {old} in the run that this one replaces"
