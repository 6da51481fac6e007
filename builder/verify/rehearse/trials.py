"""Trials of a cell: what was tried with which result, and what was not tried and why.

The numbers by outcome are recorded for `explain`; a record holds for one content key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts.manifests import read_manifest
from builder.model import PlannedImage
from builder.model.errors import counted
from builder.model.records import plain, write
from builder.system.files import json_record, write_texts
from builder.system.home import Home

# In the order in which results are shown.
OUTCOMES = ("failed", "not tried", "passed")
FAILED, NOT_TRIED, PASSED = OUTCOMES
# The kinds of trials, in the order in which they are shown.
KINDS = (
    *("sources", "clones", "packages", "python", "conda", "patches"),
    *("flags", "toolkit", "imports", "libraries", "steps"),
)
SOURCES, CLONES, PACKAGES, PYTHON, CONDA, PATCHES, FLAGS, TOOLKIT, IMPORTS, LIBRARIES, STEPS = KINDS
# Trials whose subjects depend only on the spec, and not on answers of servers.
_ASKED = frozenset({SOURCES, CLONES, PACKAGES, PYTHON, CONDA})


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One trial of a part of an image without building it, or one that could not be made.

    `subject` is the part of the spec, `line` its line in the Dockerfile. `text` is the result, or
    the reason why there is none; `hint` says what to do about a failure.
    """

    kind: str
    subject: str
    outcome: str
    text: str
    line: int
    hint: str = ""


def passed(kind: str, subject: str, text: str, line: int = 0) -> Trial:
    return Trial(kind=kind, subject=subject, outcome=PASSED, text=text, line=line)


def failed(kind: str, subject: str, text: str, line: int = 0, hint: str = "") -> Trial:
    return Trial(kind=kind, subject=subject, outcome=FAILED, text=text, line=line, hint=hint)


def not_tried(kind: str, subject: str, reason: str, line: int = 0) -> Trial:
    return Trial(kind=kind, subject=subject, outcome=NOT_TRIED, text=reason, line=line)


def in_order(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return trials by kind and place, each once."""
    distinct = dict.fromkeys(trials)
    return tuple(sorted(distinct, key=lambda trial: (KINDS.index(trial.kind), trial.line)))


@dataclass(frozen=True, kw_only=True, slots=True)
class CellTrials:
    """The trials of one cell; they are valid only for the image with this content key."""

    image: str
    content_key: str
    trials: tuple[Trial, ...]

    def of(self, outcome: str) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.outcome == outcome)

    @property
    def asked(self) -> str:
        """A SHA-256 over the subjects of the spec: two rehearsals with the same tried the same."""
        asked = {f"{trial.kind} {trial.subject}" for trial in self.trials if trial.kind in _ASKED}
        return hashlib.sha256("\n".join(sorted(asked)).encode()).hexdigest()

    def with_more(self, trials: Iterable[Trial]) -> CellTrials:
        return dataclasses.replace(self, trials=in_order([*self.trials, *trials]))

    @property
    def has_failed(self) -> bool:
        return bool(self.of(FAILED))


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalRecord:
    """The numbers of a cell's trials by outcome, and the day of the rehearsal (ISO date)."""

    content_key: str
    date: str
    passed: int
    failed: int
    not_tried: int

    def __str__(self) -> str:
        tried = f"{self.passed + self.failed} trials"
        outcome = f"{self.failed} failed" if self.failed else "none failed"
        return f"rehearsed on {self.date}: {tried}, {outcome}; {self.not_tried} could not be tried"


def write_record(folder: Path, cell: CellTrials, date: str) -> None:
    """Record a rehearsal in place of an earlier one of the same content key.

    Steps that ran on another base are left out: they prove nothing about the image.
    """
    counts = Counter(trial.outcome for trial in cell.trials if trial.kind != STEPS)
    record = RehearsalRecord(
        content_key=cell.content_key,
        date=date,
        passed=counts[PASSED],
        failed=counts[FAILED],
        not_tried=counts[NOT_TRIED],
    )
    write_texts(folder, {f"{cell.content_key}.json": json.dumps(write(record)) + "\n"})


def read_record(folder: Path, content_key: str) -> RehearsalRecord | None:
    """Read the record of an image as it is now, if it was rehearsed."""
    record = json_record(RehearsalRecord, folder / f"{content_key}.json")
    return record if record and record.content_key == content_key else None


def seen_of(out: Path, home: Home, image: PlannedImage) -> str:
    """Return in a few words how far an image, as it is now, was tested on this machine.

    A built image with CUDA counts as proven as far as this machine allows.
    """
    manifest = read_manifest(out / image.identifier)
    if manifest is None or manifest.content_key != image.content_key:
        record = read_record(home.rehearsals, image.content_key)
        return str(record or "compiled only: neither built nor rehearsed here")
    if manifest.outcome != "verified":
        return f"built here: {manifest.outcome}"
    emulated = ", emulated" if manifest.emulated else ""
    without = ", without a GPU" if image.cuda and manifest.proven_on_gpu is not True else ""
    return f"built and proven here{emulated}{without}"


# ---- As text and JSON ----

_INDENT = " " * 4


def as_json(cells: Sequence[CellTrials]) -> dict[str, object]:
    """Return the rehearsal as JSON for programs."""
    return {
        "schema": "build-images/rehearsal/v1",
        "cells": [
            {
                "image": cell.image,
                "content_key": cell.content_key,
                "asked": cell.asked,
                "trials": plain(cell.trials),
            }
            for cell in cells
        ],
    }


def as_text(cells: Sequence[CellTrials], *, with_passed: bool) -> Iterator[str]:
    """Yield the failed and untried checks of each cell and, on request, the passed ones."""
    for cell in cells:
        yield f"{cell.image}: {_counts(cell.trials)}"
        for outcome in OUTCOMES if with_passed else OUTCOMES[:2]:
            for trial in cell.of(outcome):
                yield from _lines(trial)
    failed = sum(cell.has_failed for cell in cells)
    yield f"{counted(len(cells), 'cell')} rehearsed, {failed} with failures"


def _lines(trial: Trial) -> Iterator[str]:
    place = f" (Dockerfile:{trial.line})" if trial.line else ""
    yield f"{_INDENT}{trial.outcome}: {trial.kind}: {trial.subject}{place}"
    yield f"{_INDENT * 2}{trial.text}"
    if trial.hint:
        yield f"{_INDENT * 2}hint: {trial.hint}"


def _counts(trials: Sequence[Trial]) -> str:
    outcomes = [trial.outcome for trial in trials]
    return ", ".join(f"{outcomes.count(name)} {name}" for name in ("passed", *OUTCOMES[:2]))
