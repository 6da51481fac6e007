"""The checks of an image, run in one of its formats."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.engines import Tools
from builder.errors import Interrupted, StepFailed
from builder.model import FAILED, PASSED, SKIPPED, Outcome
from builder.process import Completed
from builder.verify.runners import RUNNERS, Runner

SKIP_STATUS = 77  # Automake's convention
ENVIRONMENT_CHECK = "environment"
_OUTPUT_LINES = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class InImageCheck:
    """A check as the image carries it: `script` is its path inside."""

    name: str
    script: str
    needs: tuple[str, ...]
    timeout_s: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What is to be proven: an image's name, its environment and its checks."""

    identifier: str
    arch: str
    environment: Mapping[str, str]
    checks: tuple[InImageCheck, ...]


def verify_format(
    target: Target, artifact_format: str, artifact: Path, *, work: Path, tools: Tools
) -> tuple[Outcome, ...]:
    """Run every check in one format. A container that does not start fails them all."""
    try:
        with RUNNERS[artifact_format](artifact, work=work, tools=tools) as runner:
            return (
                _environment_outcome(target, runner),
                *(_outcome(check, runner) for check in target.checks),
            )
    except Interrupted:
        raise
    except StepFailed as error:
        names = [ENVIRONMENT_CHECK, *(check.name for check in target.checks)]
        said = error.tail[-1] if error.tail else error.message
        reason = f"the container could not be started: {said}"
        return tuple(
            Outcome(check=name, outcome=FAILED, reason=reason, output="\n".join(error.tail))
            for name in names
        )


def passed(outcomes: Iterable[Outcome]) -> bool:
    """Whether nothing failed; what was skipped is not passed, and does not count as failed."""
    return all(outcome.outcome != FAILED for outcome in outcomes)


def _environment_outcome(target: Target, runner: Runner) -> Outcome:
    done = runner.run(["env"], timeout_s=60)
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    wrong = [
        f"{key} is {found[key]!r}, not {value!r}" if key in found else f"{key} is not set"
        for key, value in target.environment.items()
        if found.get(key) != value
    ]
    if done.returncode or wrong:
        reason = "; ".join(wrong) or _last_line(done.stderr) or "env did not run"
        return Outcome(check=ENVIRONMENT_CHECK, outcome=FAILED, reason=reason, output=_end(done))
    names = ", ".join(sorted(target.environment)) or "nothing is set by the image"
    return Outcome(
        check=ENVIRONMENT_CHECK,
        outcome=PASSED,
        reason=f"the image's variables are set: {names}",
        duration_s=done.duration_s,
    )


def _outcome(check: InImageCheck, runner: Runner) -> Outcome:
    done = runner.run([check.script], timeout_s=check.timeout_s)
    outcome, reason = _judged(check, done)
    return Outcome(
        check=check.name,
        outcome=outcome,
        reason=reason,
        duration_s=round(done.duration_s, 3),
        data=_data(done.stdout),
        output="" if outcome == PASSED else _end(done),
    )


def _judged(check: InImageCheck, done: Completed) -> tuple[str, str]:
    last = _last_line(done.stdout)
    if done.timed_out:
        return FAILED, f"no result after {check.timeout_s} s; its last line: {last or 'none'}"
    if done.returncode == SKIP_STATUS:
        return SKIPPED, last or "the check gives no reason"
    if done.returncode:
        return FAILED, last or _last_line(done.stderr) or f"exit status {done.returncode}"
    if not last:
        return FAILED, "exit status 0, but the check printed no finding"
    return PASSED, last


def _data(text: str) -> dict[str, Any]:
    for line in text.splitlines():
        if line.startswith("data: "):
            try:
                found = json.loads(line.removeprefix("data: "))
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("data: ")]
    return lines[-1].strip()[:500] if lines else ""


def _end(done: Completed) -> str:
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    return "\n".join(lines[-_OUTPUT_LINES:])
