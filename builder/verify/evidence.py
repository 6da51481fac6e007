"""Evidence: what the checks found, bound to the artifacts by their digests.

An in-toto Statement v1 with the predicate test-result v0.1:
https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from builder.model import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.verify.host import HostFacts

STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"


def write_evidence(
    folder: Path,
    *,
    identifier: str,
    artifact_format: str,
    artifacts: Sequence[Artifact],
    outcomes: Sequence[Outcome],
    host: HostFacts,
    runner: str,
    emulated: bool,
    tools: Mapping[str, str],
    started: str,
) -> Path:
    """Write the statement of one format's run into `folder`; its path.

    Its subjects are all artifacts of the cell and their common tree. A skipped check is listed
    among the warnings, never among the passed ones, and the result is then `WARNED`.
    """
    statement = {
        "_type": STATEMENT,
        "subject": _subjects(identifier, artifacts),
        "predicateType": TEST_RESULT,
        "predicate": {
            "result": _result(outcomes),
            "configuration": [
                {
                    "name": "run",
                    "annotations": {
                        "format": artifact_format,
                        "runner": runner,
                        "emulated": emulated,
                        "started": started,
                        "host": asdict(host),
                        "tools": dict(tools),
                    },
                },
                *({"name": one.check, "annotations": _finding(one)} for one in outcomes),
            ],
            "passedTests": _names(outcomes, PASSED),
            "warnedTests": _names(outcomes, SKIPPED),
            "failedTests": _names(outcomes, FAILED),
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{artifact_format}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(statement, indent=1, sort_keys=True) + "\n")
    return partial.replace(path)


def _subjects(identifier: str, artifacts: Sequence[Artifact]) -> list[dict[str, Any]]:
    subjects = [
        {"name": f"{identifier}/{one.format}", "digest": _digest(one.digest)} for one in artifacts
    ]
    trees = sorted({one.tree_digest for one in artifacts if one.tree_digest})
    return subjects + [{"name": f"{identifier}/tree", "digest": _digest(tree)} for tree in trees]


def _digest(text: str) -> dict[str, str]:
    algorithm, _, value = text.partition(":")
    return {algorithm: value}


def _result(outcomes: Sequence[Outcome]) -> str:
    if any(one.outcome == FAILED for one in outcomes):
        return "FAILED"
    return "WARNED" if any(one.outcome == SKIPPED for one in outcomes) else "PASSED"


def _finding(outcome: Outcome) -> dict[str, Any]:
    return {
        "outcome": outcome.outcome,
        "reason": outcome.reason,
        "duration_s": outcome.duration_s,
        "data": dict(outcome.data),
    }


def _names(outcomes: Sequence[Outcome], outcome: str) -> list[str]:
    return [one.check for one in outcomes if one.outcome == outcome]
