"""From artifacts to proof: trees compared, checks run in every format, evidence written."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from builder.build.packing import file_digest
from builder.build.run import Run, now
from builder.model import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.model.errors import MissingPrerequisite, StepFailed
from builder.model.manifest import InImageCheck, ProvenImage, required_runs
from builder.verify import (
    DEFAULTS,
    RUNNERS,
    FormatTree,
    Setting,
    host_facts,
    images_own,
    lost_gpus,
    reading_trees,
    write_evidence,
)
from builder.verify.checks import (
    Target,
    after_a_loss,
    all_failed,
    not_started,
    outcome_of,
    outcomes_in,
    passed,
    why_no_gpu,
)
from builder.verify.container_output import LONGEST
from builder.verify.harness import altered_harness, carried_harness, lacking_mpi, with_carried
from builder.verify.machine_faults import machines_fault, not_tried
from builder.verify.metadata import compared
from builder.verify.runners import Container, Kind, Runner

_AT_ONCE = 2  # each takes a core to unpack and one to hash or write


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What the verification of one image found.

    `outcomes` are by name: that of the format, or `FORMAT-RUNNER` where another program than the
    usual one ran it. `evidence` are the files, relative to the image's folder. `checks` are those
    of the image, `emulated` the names of the runs that were. `untried` says of runs, by name, what
    this machine lacks for them: nothing is known of the image by those.
    """

    artifacts: Mapping[str, Artifact]
    outcomes: Mapping[str, tuple[Outcome, ...]]
    equal: Outcome
    evidence: tuple[str, ...]
    checks: tuple[InImageCheck, ...]
    emulated: tuple[str, ...]
    untried: Mapping[str, str] = field(default_factory=dict)


def prove(
    run: Run,
    target: Target,
    artifacts: Mapping[str, Artifact],
    *,
    work: Path,
    folder: Path,
    runners: Sequence[str] = (),
) -> Proof:
    """Verify an image's artifacts; evidence goes to `folder`/evidence, two files a run.

    All artifacts are read and compared. The checks are run by `runners`, or by the usual one of
    each format. Raises `MissingPrerequisite`, and writes nothing, where this machine can do none of
    it.
    """
    kinds = [RUNNERS[name] for name in runners or [DEFAULTS[name] for name in artifacts]]
    run.progress.step(target.identifier, f"reading the trees of {', '.join(artifacts)}")
    paths = {name: one.path for name, one in artifacts.items()}
    with contextlib.ExitStack() as open_ones:
        with _pool(run) as pool:  # containers are made meanwhile; checks run when it is quiet
            trees_read = reading_trees(paths, work=work, tools=run.tools, pool=pool)
            making = [
                pool.submit(_Container.made, run, target, kind, paths[kind.format], work, open_ones)
                for kind in kinds
            ]
            trees, broken = trees_read()
            containers = [one.result() for one in making]
        proven = {name: _proven(one, trees.get(name)) for name, one in artifacts.items()}
        target = with_carried(target, trees.values())
        equal = compared(trees, broken, paths, arch=target.arch, has_checks=bool(target.checks))
        equal = dataclasses.replace(equal, data={"harness": _harness(trees)})
        altered = altered_harness(target, trees)
        tried = {one.name: one.run(run, target) for one in containers}
    untried = {name: one for name, one in tried.items() if isinstance(one, str)}
    runs = {name: one for name, one in tried.items() if not isinstance(one, str)}
    if not runs:
        raise not_tried(target.identifier, untried)
    outcomes = {name: (equal, *altered, *one.outcomes) for name, one in runs.items()}
    evidence = [
        write_evidence(
            folder / "evidence",
            name,
            identifier=target.identifier,
            artifacts=list(proven.values()),
            outcomes=outcomes[name],
            scripts=_scripts(target, trees.get(one.setting.format)),
            setting=one.setting,
        )
        for name, one in runs.items()
    ]
    return Proof(
        artifacts=proven,
        outcomes=outcomes,
        equal=equal,
        evidence=tuple(path.relative_to(folder).as_posix() for path in evidence),
        checks=target.checks,
        emulated=tuple(sorted(name for name, one in runs.items() if one.setting.emulator)),
        untried=untried,
    )


def _proven(artifact: Artifact, tree: FormatTree | None) -> Artifact:
    """An artifact with the digests that reading its tree gave; it may have been damaged before."""
    if tree is None:
        return dataclasses.replace(artifact, digest=artifact.digest or file_digest(artifact.path))
    digest = artifact.digest or tree.artifact
    return dataclasses.replace(artifact, digest=digest, tree_digest=tree.digest)


@contextlib.contextmanager
def _pool(run: Run) -> Iterator[Executor]:
    """Threads for what is read and unpacked; Ctrl-C does not wait for them to come to their end."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            run.tools.processes.stop()
            raise


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """The outcomes of checks in one container, and where and how they were found."""

    outcomes: tuple[Outcome, ...]
    setting: Setting


@dataclass(frozen=True, kw_only=True, slots=True)
class _Container:
    """A format that is ready for its checks, or why it is not; `no_gpu` as in the evidence."""

    kind: Kind
    container: Container
    runner: Runner | StepFailed | MissingPrerequisite
    no_gpu: str

    @classmethod
    def made(
        cls,
        run: Run,
        target: Target,
        kind: Kind,
        artifact: Path,
        work: Path,
        open_ones: contextlib.ExitStack,
    ) -> _Container:
        """Make it; it is gone when `open_ones` is closed."""
        tools = run.tools
        no_gpu = why_no_gpu(target, kind, host=run.host, tools=tools)
        container = Container(
            artifact=artifact,
            work=work,
            tools=tools,
            directory=target.directory,
            gpu=not no_gpu,
        )
        opening = kind.open(container)
        try:
            runner = opening.__enter__()
        except (StepFailed, MissingPrerequisite) as error:
            return cls(kind=kind, container=container, runner=error, no_gpu=no_gpu)
        open_ones.push(opening)
        return cls(kind=kind, container=container, runner=runner, no_gpu=no_gpu)

    @property
    def name(self) -> str:
        """What its outcomes and evidence are called."""
        usual = DEFAULTS[self.kind.format] == self.kind.name
        return self.kind.format if usual else f"{self.kind.format}-{self.kind.name}"

    def run(self, run: Run, target: Target) -> _Run | str:
        """Run the checks; or why this machine cannot."""
        kind, runner, started = self.kind, self.runner, now()
        if isinstance(runner, MissingPrerequisite):
            return str(runner.args[0])
        run.progress.step(target.identifier, f"verifying in {kind.program}")
        if isinstance(runner, StepFailed):
            found = not_started(target, runner)
        else:
            found = (
                *outcomes_in(target, kind, runner, gpu=not self.no_gpu),
                *withheld(target, kind, self.container),
            )
        error = runner if isinstance(runner, StepFailed) else None
        if fault := machines_fault(kind, self.container, target.arch, found, error):
            return fault
        found = (*found, *lacking_mpi(target))
        if lost := lost_gpus(run.host, host_facts()):
            found = after_a_loss(found, target, lost)
        version = run.versions.get(kind.program) or run.tools.version(kind.program)
        setting = Setting(
            format=kind.format,
            runner=kind.program,
            runner_version=version,
            host=run.host,
            started=started,
            finished=now(),
            emulator=emulator_of(run, target.arch, seen_arch(found, target.arch)),
            launcher=images_own(found),
            gpu=not self.no_gpu,
            no_gpu=self.no_gpu,
            tools=run.versions,
            indices=target.indices,
        )
        return _Run(outcomes=found, setting=setting)


def emulator_of(run: Run, *archs: str) -> str:
    """What runs the code of some architectures, if one is not that of this machine's processor."""
    is_foreign = any(arch != run.host.arch for arch in archs)
    return f"qemu {run.versions.get('qemu', '')}".strip() if is_foreign else ""


def _harness(trees: Mapping[str, FormatTree]) -> dict[str, str]:
    """The digests of the harness in the first format that could be read; all formats are equal."""
    return carried_harness(next(iter(trees.values()))) if trees else {}


def _scripts(target: Target, tree: FormatTree | None) -> dict[str, str]:
    """The SHA-256 of the checks' scripts, by name, as they are in the artifact."""
    entries = tree.entries if tree else {}
    paths = {check.name: check.script.lstrip("/") for check in target.checks}
    return {
        name: entries[path].content
        for name, path in paths.items()
        if path in entries and entries[path].content
    }


def seen_arch(outcomes: Iterable[Outcome], arch: str) -> str:
    """The architecture that programs saw (`uname`), or else `arch`, that of the image."""
    return next((str(one.data["uname"]) for one in outcomes if "uname" in one.data), arch)


def proven_part(image: str, run: Run, proof: Proof) -> ProvenImage:
    """What a manifest says of the proof."""
    gpu = {check.name for check in proof.checks if check.needs_gpu}
    has_passed = all(passed(proof.outcomes[name]) for name in required_runs(proof.outcomes))
    return ProvenImage(
        image=image,
        artifacts=in_folder(proof.artifacts),
        tree_digest=next(iter(proof.artifacts.values())).tree_digest,
        formats_equal=None if proof.equal.outcome == SKIPPED else proof.equal.outcome == PASSED,
        emulated=bool(proof.emulated),
        emulated_runs=proof.emulated,
        in_image_checks=proof.checks,
        tools=run.versions,
        checks=proof.outcomes,
        outcome="verified" if has_passed else "failed",
        proven_on_gpu=proven_on_gpu(gpu, proof.artifacts, proof.outcomes),
        evidence=proof.evidence,
    )


def proven_on_gpu(
    gpu: Collection[str], formats: Iterable[str], found: Mapping[str, Iterable[Outcome]]
) -> bool | None:
    """Return whether the checks `gpu` passed in some run of each format, and failed in none.

    `found` are outcomes by the names of runs. None if the image has no such check. The negative
    control is none of the image's checks: if it failed, the others prove nothing.
    """
    if not gpu:
        return None
    runs: dict[str, list[set[str]]] = {name: [] for name in formats}
    for name, outcomes in found.items():
        own = list(outcomes)
        mine = {one.outcome for one in own if one.check in gpu and one.applies}
        if FAILED in mine | {one.outcome for one in own if one.check == WITHHELD_CHECK}:
            return False
        runs.setdefault(name.partition("-")[0], []).append(mine)
    return all(any(SKIPPED not in mine for mine in some) for some in runs.values())


def in_folder(artifacts: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Artifacts as manifests hold them: their paths are relative to the image's folder."""
    return {
        name: dataclasses.replace(one, path=Path(one.path.name)) for name, one in artifacts.items()
    }


WITHHELD_CHECK = "gpu-withheld"
_CONTROL = "gpu-control"
_FOUND = "gpu-found"  # passes where the driver gives a GPU
_SCRIPT = "/opt/build-images/src/gpu-control.sh"


def withheld(target: Target, kind: Kind, container: Container) -> tuple[Outcome, ...]:
    """The outcome of the program in a second container, without the GPUs that `container` has.

    None where that has no GPUs either, so that `gpu-control` saw what there is to see, and for an
    image without that check. Skipped where the GPUs are there although nobody handed them over:
    Docker with NVIDIA's runtime as its own gives them to all images that ask by their variables.
    """
    checks = {check.name: check for check in target.checks}
    if not container.gpu or _CONTROL not in checks:
        return ()
    script = InImageCheck(
        name=WITHHELD_CHECK, script=_SCRIPT, needs=(), timeout_s=checks[_CONTROL].timeout_s
    )
    try:
        with kind.open(dataclasses.replace(container, gpu=False)) as runner:
            there = outcome_of(checks[_FOUND], runner) if _FOUND in checks else None
            if there and there.outcome == PASSED:
                return (_not_withheld(there),)
            return (outcome_of(script, runner, ["sh", _SCRIPT, "start"]),)
    except StepFailed as error:
        return all_failed([WITHHELD_CHECK], "a container without GPUs could not be started", error)


def _not_withheld(there: Outcome) -> Outcome:
    reason = f"not judged: GPUs are there though none was handed over: {there.reason}"
    return Outcome(check=WITHHELD_CHECK, outcome=SKIPPED, reason=reason[:LONGEST])
