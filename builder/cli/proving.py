"""From artifacts to proof: trees compared, checks run in every format, evidence written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.cli.run import Run, now
from builder.model import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.verify import Target, equality, tree_of_artifact, verify_format, write_evidence
from builder.verify.checks import passed

RUNNERS = {"oci": "buildah", "sif": "apptainer", "charliecloud": "ch-run"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What the verification of one image found, in all formats."""

    artifacts: Mapping[str, Artifact]
    outcomes: Mapping[str, tuple[Outcome, ...]]
    equal: Outcome
    evidence: tuple[str, ...]


def prove(
    run: Run, target: Target, artifacts: Mapping[str, Artifact], *, work: Path, folder: Path
) -> Proof:
    """Verify an image's artifacts; evidence goes to `folder`/evidence, one file a format."""
    started = now()
    trees = {}
    for name, artifact in artifacts.items():
        run.progress.step(target.identifier, f"reading the tree of the {name} artifact")
        trees[name] = tree_of_artifact(name, artifact.path, work=work, tools=run.tools)
    proven = {
        name: dataclasses.replace(artifact, tree_digest=trees[name].digest)
        for name, artifact in artifacts.items()
    }
    equal = equality(trees)
    outcomes: dict[str, tuple[Outcome, ...]] = {}
    for name, artifact in proven.items():
        run.progress.step(target.identifier, f"verifying in {RUNNERS[name]}")
        found = verify_format(target, name, artifact.path, work=work, tools=run.tools)
        outcomes[name] = (equal, *found)
    evidence = tuple(
        write_evidence(
            folder / "evidence",
            identifier=target.identifier,
            artifact_format=name,
            artifacts=list(proven.values()),
            outcomes=found,
            host=run.host,
            runner=RUNNERS[name],
            emulated=target.arch != run.host.arch,
            tools=run.versions,
            started=started,
        )
        .relative_to(folder)
        .as_posix()
        for name, found in outcomes.items()
    )
    return Proof(artifacts=proven, outcomes=outcomes, equal=equal, evidence=evidence)


def manifest_part(run: Run, proof: Proof, target: Target) -> dict[str, Any]:
    """What a manifest says of the proof."""
    gpu = {check.name for check in target.checks if "gpu" in check.needs}
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
