"""What a rehearsal finds of a cell: what was tried with which result, and what was not and why."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PASSED, FAILED, NOT_TRIED = "passed", "failed", "not tried"
OUTCOMES = (PASSED, FAILED, NOT_TRIED)

# The kinds of trials, in the order in which results are shown.
KINDS = (
    "sources",
    "clones",
    "packages",
    "python",
    "conda",
    "patches",
    "flags",
    "toolkit",
    "imports",
    "libraries",
    "steps",
)
SOURCES, CLONES, PACKAGES, PYTHON, CONDA, PATCHES, FLAGS, TOOLKIT, IMPORTS, LIBRARIES, STEPS = KINDS


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One thing that was tried without building the image, or that could not be.

    `subject` is what the spec asks for, `line` where in its Dockerfile. `text` is the result, or
    the reason why there is none; `hint` says what to do about a failure.
    """

    kind: str
    subject: str
    outcome: str
    text: str
    line: int = 0
    hint: str = ""


# What a spec asks for by itself, whatever servers answer.
_ASKED = frozenset({SOURCES, CLONES, PACKAGES, PYTHON, CONDA})


@dataclass(frozen=True, kw_only=True, slots=True)
class CellTrials:
    """The trials of one cell; they hold for the image with this content key alone."""

    image: str
    content_key: str
    trials: tuple[Trial, ...]

    def of(self, outcome: str) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.outcome == outcome)

    @property
    def asked(self) -> str:
        """A SHA-256 over what the spec asks for: two rehearsals with the same tried the same."""
        asked = {f"{trial.kind} {trial.subject}" for trial in self.trials if trial.kind in _ASKED}
        return hashlib.sha256("\n".join(sorted(asked)).encode()).hexdigest()

    def with_more(self, trials: Iterable[Trial]) -> CellTrials:
        """The same cell with more trials."""
        return dataclasses.replace(self, trials=in_order([*self.trials, *trials]))

    @property
    def has_failed(self) -> bool:
        return bool(self.of(FAILED))


def passed(kind: str, subject: str, text: str, line: int = 0) -> Trial:
    return Trial(kind=kind, subject=subject, outcome=PASSED, text=text, line=line)


def failed(kind: str, subject: str, text: str, line: int = 0, hint: str = "") -> Trial:
    return Trial(kind=kind, subject=subject, outcome=FAILED, text=text, line=line, hint=hint)


def not_tried(kind: str, subject: str, reason: str, line: int = 0) -> Trial:
    return Trial(kind=kind, subject=subject, outcome=NOT_TRIED, text=reason, line=line)


def in_order(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Trials by kind and place, each once."""
    distinct = dict.fromkeys(trials)
    return tuple(sorted(distinct, key=lambda trial: (KINDS.index(trial.kind), trial.line)))
