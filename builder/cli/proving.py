"""From artifacts to proof: trees compared, checks run in every format, evidence written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.cli.run import Run, now
from builder.model import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.verify import (
    DEFAULTS,
    RUNNERS,
    FormatTree,
    Kind,
    Setting,
    Target,
    equality,
    host_facts,
    lost_gpus,
    trees_of,
    verify_format,
    write_evidence,
)
from builder.verify.checks import after_a_loss, passed, why_no_gpu


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What the verification of one image found.

    `outcomes` are by name: that of the format, or `FORMAT-RUNNER` where another program than the
    usual one ran it. `evidence` are the files, relative to the image's folder.
    """

    artifacts: Mapping[str, Artifact]
    outcomes: Mapping[str, tuple[Outcome, ...]]
    equal: Outcome
    evidence: tuple[str, ...]


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
    trees, broken = trees_of(paths, work=work, tools=run.tools)
    proven = {
        name: dataclasses.replace(one, tree_digest=trees[name].digest if name in trees else "")
        for name, one in artifacts.items()
    }
    equal = equality(trees, broken)
    outcomes: dict[str, tuple[Outcome, ...]] = {}
    evidence: list[Path] = []
    for kind in kinds:
        name = _name(kind)
        run.progress.step(target.identifier, f"verifying in {kind.program}")
        found, setting = _run(run, target, kind, proven[kind.format], work=work)
        outcomes[name] = (equal, *found)
        evidence.append(
            write_evidence(
                folder / "evidence",
                name,
                identifier=target.identifier,
                artifacts=list(proven.values()),
                outcomes=outcomes[name],
                scripts=_scripts(target, trees.get(kind.format)),
                setting=setting,
            )
        )
    files = tuple(path.relative_to(folder).as_posix() for path in evidence)
    return Proof(artifacts=proven, outcomes=outcomes, equal=equal, evidence=files)


def _run(
    run: Run, target: Target, kind: Kind, artifact: Artifact, *, work: Path
) -> tuple[tuple[Outcome, ...], Setting]:
    """Run the checks in one format; the outcomes, and where and how they were found."""
    tools, started = run.tools, now()
    no_gpu = why_no_gpu(target, kind, host=run.host, tools=tools)
    found = verify_format(target, kind, artifact.path, work=work, tools=tools, gpu=not no_gpu)
    if lost := lost_gpus(run.host, host_facts()):
        found = after_a_loss(found, target, lost)
    return found, Setting(
        format=kind.format,
        runner=kind.program,
        runner_version=run.versions.get(kind.program) or tools.version(kind.program),
        host=run.host,
        started=started,
        finished=now(),
        emulator=_emulator(run, target),
        gpu=not no_gpu,
        no_gpu=no_gpu,
        tools=run.versions,
    )


def _emulator(run: Run, target: Target) -> str:
    """What runs the image's code, if it is not this machine's processor."""
    is_foreign = target.arch != run.host.arch
    return f"qemu {run.versions.get('qemu', '')}".strip() if is_foreign else ""


def _scripts(target: Target, tree: FormatTree | None) -> dict[str, str]:
    """The SHA-256 of the checks' scripts, by name, as they are in the artifact."""
    entries = tree.entries if tree else {}
    paths = {check.name: check.script.lstrip("/") for check in target.checks}
    return {
        name: entries[path].content
        for name, path in paths.items()
        if path in entries and entries[path].content
    }


def _name(kind: Kind) -> str:
    """What the outcomes and the evidence of a run are called."""
    usual = DEFAULTS[kind.format] == kind.name
    return kind.format if usual else f"{kind.format}-{kind.name}"


def manifest_part(run: Run, proof: Proof, target: Target) -> dict[str, Any]:
    """What a manifest says of the proof."""
    gpu = {check.name for check in target.checks if check.needs_gpu}
    found = [one.outcome for some in proof.outcomes.values() for one in some if one.check in gpu]
    return {
        "artifacts": {name: artifact_part(one) for name, one in proof.artifacts.items()},
        "tree_digest": next(iter(proof.artifacts.values())).tree_digest,
        "formats_equal": None if proof.equal.outcome == SKIPPED else proof.equal.outcome == PASSED,
        "emulated": target.arch != run.host.arch,
        "tools": dict(run.versions),
        "checks": {
            name: [asdict(one) for one in outcomes] for name, outcomes in proof.outcomes.items()
        },
        "outcome": "verified" if all(map(passed, proof.outcomes.values())) else "failed",
        "proven_on_gpu": None if not gpu else SKIPPED not in found and FAILED not in found,
        "evidence": list(proof.evidence),
    }


def artifact_part(artifact: Artifact) -> dict[str, Any]:
    """An artifact as manifests hold it: its path is relative to the image's folder."""
    return {**asdict(artifact), "path": artifact.path.name}
