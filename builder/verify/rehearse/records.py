"""Rehearsals that this machine has made, kept for `explain`: each holds for one content key."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts.manifests import read_manifest
from builder.model import PlannedImage
from builder.model.manifest import Manifest
from builder.model.records import read
from builder.system.files import write_atomically
from builder.system.home import Home
from builder.verify.rehearse.trials import FAILED, NOT_TRIED, PASSED, STEPS, CellTrials


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalRecord:
    """How many trials of a cell had which outcome, and on which day (ISO date)."""

    content_key: str
    date: str
    passed: int
    failed: int
    not_tried: int

    def __str__(self) -> str:
        tried = f"{self.passed + self.failed} trials"
        outcome = f"{self.failed} failed" if self.failed else "none failed"
        return f"rehearsed on {self.date}: {tried}, {outcome}; {self.not_tried} could not be tried"


def keep(folder: Path, cell: CellTrials, date: str) -> None:
    """Note a rehearsal; an earlier one of the same content key is replaced.

    Steps that ran on another base are left out: they say nothing of the image.
    """
    counts = Counter(trial.outcome for trial in cell.trials if trial.kind != STEPS)
    record = {
        "content_key": cell.content_key,
        "date": date,
        "passed": counts[PASSED],
        "failed": counts[FAILED],
        "not_tried": counts[NOT_TRIED],
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{cell.content_key}.json", json.dumps(record) + "\n")


def kept(folder: Path, content_key: str) -> RehearsalRecord | None:
    """The rehearsal of an image as it is now; None where there is none."""
    try:
        record = read(RehearsalRecord, json.loads((folder / f"{content_key}.json").read_text()))
    except (OSError, ValueError):
        return None
    return record if record.content_key == content_key else None


COMPILED_ONLY = "compiled only: neither built nor rehearsed here"


def seen_of(out: Path, home: Home, image: PlannedImage) -> str:
    """In a few words, the most that this machine has seen of an image with this content key."""
    manifest = read_manifest(out / image.identifier)
    if manifest is not None and manifest.content_key == image.content_key:
        return _built(manifest, image)
    rehearsal = kept(home.rehearsals, image.content_key)
    return str(rehearsal) if rehearsal else COMPILED_ONLY


def _built(manifest: Manifest, image: PlannedImage) -> str:
    """How an image that was built ended; one with CUDA is proven as far as that goes here."""
    if manifest.outcome != "verified":
        return f"built here: {manifest.outcome}"
    emulated = ", emulated" if manifest.emulated else ""
    without = ", without a GPU" if image.cuda and manifest.proven_on_gpu is not True else ""
    return f"built and proven here{emulated}{without}"
