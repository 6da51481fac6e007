"""From artifacts to proof: trees compared, checks run in every format, evidence written."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.cli.packing import file_digest
from builder.cli.run import Run, now
from builder.errors import StepFailed
from builder.model import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.verify import (
    DEFAULTS,
    RUNNERS,
    FormatTree,
    InImageCheck,
    Kind,
    Setting,
    Target,
    equality,
    host_facts,
    images_own,
    lost_gpus,
    reading_trees,
    write_evidence,
)
from builder.verify.carried import lacking_mpi, with_carried
from builder.verify.checks import after_a_loss, not_started, outcomes_in, passed, why_no_gpu
from builder.verify.control import WITHHELD_CHECK, withheld
from builder.verify.harness import altered_harness, carried_harness
from builder.verify.runners import Container, Runner

_AT_ONCE = 2  # each takes a core to unpack and one to hash or write


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What the verification of one image found.

    `outcomes` are by name: that of the format, or `FORMAT-RUNNER` where another program than the
    usual one ran it. `evidence` are the files, relative to the image's folder. `checks` are those
    of the image, `emulated` the names of the runs that were.
    """

    artifacts: Mapping[str, Artifact]
    outcomes: Mapping[str, tuple[Outcome, ...]]
    equal: Outcome
    evidence: tuple[str, ...]
    checks: tuple[InImageCheck, ...]
    emulated: tuple[str, ...]


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
    each format.
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
        equal = equality(trees, broken)
        target = with_carried(target, trees.values())
        equal = dataclasses.replace(equal, data={"harness": _harness(trees)})
        altered = altered_harness(target, trees)
        emulated: list[str] = []
        outcomes: dict[str, tuple[Outcome, ...]] = {}
        evidence: list[Path] = []
        for container in containers:
            found, setting = container.outcomes(run, target)
            outcomes[container.name] = (equal, *altered, *found)
            emulated += [container.name] if setting.emulator else []
            evidence.append(
                write_evidence(
                    folder / "evidence",
                    container.name,
                    identifier=target.identifier,
                    artifacts=list(proven.values()),
                    outcomes=outcomes[container.name],
                    scripts=_scripts(target, trees.get(container.kind.format)),
                    setting=setting,
                )
            )
    files = tuple(path.relative_to(folder).as_posix() for path in evidence)
    return Proof(
        artifacts=proven,
        outcomes=outcomes,
        equal=equal,
        evidence=files,
        checks=target.checks,
        emulated=tuple(sorted(emulated)),
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
class _Container:
    """A format that is ready for its checks, or why it is not; `no_gpu` as in the evidence."""

    kind: Kind
    container: Container
    runner: Runner | StepFailed
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
        except StepFailed as error:
            return cls(kind=kind, container=container, runner=error, no_gpu=no_gpu)
        open_ones.push(opening)
        return cls(kind=kind, container=container, runner=runner, no_gpu=no_gpu)

    @property
    def name(self) -> str:
        """What its outcomes and evidence are called."""
        usual = DEFAULTS[self.kind.format] == self.kind.name
        return self.kind.format if usual else f"{self.kind.format}-{self.kind.name}"

    def outcomes(self, run: Run, target: Target) -> tuple[tuple[Outcome, ...], Setting]:
        """Run the checks; the outcomes, and where and how they were found."""
        kind, runner, started = self.kind, self.runner, now()
        run.progress.step(target.identifier, f"verifying in {kind.program}")
        if isinstance(runner, StepFailed):
            found = not_started(target, runner)
        else:
            found = (
                *outcomes_in(target, kind, runner, gpu=not self.no_gpu),
                *withheld(target, kind, self.container),
            )
        found = (*found, *lacking_mpi(target))
        if lost := lost_gpus(run.host, host_facts()):
            found = after_a_loss(found, target, lost)
        version = run.versions.get(kind.program) or run.tools.version(kind.program)
        return found, Setting(
            format=kind.format,
            runner=kind.program,
            runner_version=version,
            host=run.host,
            started=started,
            finished=now(),
            emulator=emulator_of(run, seen_arch(found, target.arch)),
            launcher=images_own(found),
            gpu=not self.no_gpu,
            no_gpu=self.no_gpu,
            tools=run.versions,
        )


def emulator_of(run: Run, arch: str) -> str:
    """What runs an architecture's code, if it is not this machine's processor."""
    is_foreign = arch != run.host.arch
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


def manifest_part(run: Run, proof: Proof) -> dict[str, Any]:
    """What a manifest says of the proof."""
    gpu = {check.name for check in proof.checks if check.needs_gpu}
    return {
        "artifacts": {name: artifact_part(one) for name, one in proof.artifacts.items()},
        "tree_digest": next(iter(proof.artifacts.values())).tree_digest,
        "formats_equal": None if proof.equal.outcome == SKIPPED else proof.equal.outcome == PASSED,
        "emulated": bool(proof.emulated),
        "emulated_runs": list(proof.emulated),
        "in_image_checks": [asdict(check) for check in proof.checks],
        "tools": dict(run.versions),
        "checks": {
            name: [asdict(one) for one in outcomes] for name, outcomes in proof.outcomes.items()
        },
        "outcome": "verified" if all(map(passed, proof.outcomes.values())) else "failed",
        "proven_on_gpu": proven_on_gpu(gpu, proof.artifacts, proof.outcomes),
        "evidence": list(proof.evidence),
    }


def proven_on_gpu(
    gpu: Collection[str], formats: Iterable[str], found: Mapping[str, Iterable[Outcome]]
) -> bool | None:
    """Whether the checks `gpu` passed in some run of each format, and failed in none.

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


def artifact_part(artifact: Artifact) -> dict[str, Any]:
    """An artifact as manifests hold it: its path is relative to the image's folder."""
    return {**asdict(artifact), "path": artifact.path.name}
