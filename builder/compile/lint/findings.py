"""What lint finds, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

ERROR, WARNING = "error", "warning"
DOCKERFILE, DEFINITION = "Dockerfile", "Singularity.def"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Finding:
    """One thing that is wrong in one image's spec.

    `level` is error or warning; `rule` is a name of docs/lint.md, or hadolint's or ShellCheck's
    own (DL3015, SC2164). `file` is a path in the spec's folder, `line` counts from 1.
    """

    image: str
    file: str
    line: int
    level: str
    rule: str
    text: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.image}/{self.file}:{self.line}"
        return f"{where}: {self.level} {self.rule}: {self.text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A finding without its image: the same text has the same problems in every image."""

    file: str
    line: int
    level: str
    rule: str
    text: str
    hint: str = ""

    def of(self, image: str) -> Finding:
        return Finding(
            image=image,
            file=self.file,
            line=self.line,
            level=self.level,
            rule=self.rule,
            text=self.text,
            hint=self.hint,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """Where a rule of our own does not hold; the rule gives it its name and level."""

    file: str
    line: int
    text: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A rule of our own: `what` it wants, and `why`, as docs/lint.md prints them.

    `check` takes a `builder.compile.lint.reading.Reading` and yields a hit for each place.
    """

    name: str
    level: str
    what: str
    why: str
    check: Callable[..., Iterator[Hit]]

    def problem(self, hit: Hit) -> Problem:
        return Problem(
            file=hit.file,
            line=hit.line,
            level=self.level,
            rule=self.name,
            text=hit.text,
            hint=hit.hint,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LintReport:
    """What lint found in `specs` specs, of which `cached` were unchanged since an earlier run.

    `ran` are the linters with their versions; `missing` those that this machine lacks: what they
    would have found is not known, and an absent finding of theirs is no pass.
    """

    findings: tuple[Finding, ...]
    ran: tuple[str, ...]
    missing: tuple[str, ...]
    specs: int
    cached: int = 0

    @property
    def errors(self) -> int:
        return sum(finding.level == ERROR for finding in self.findings)

    @property
    def warnings(self) -> int:
        return len(self.findings) - self.errors


def shortened(text: str, limit: int = 100) -> str:
    """A command as a message quotes it."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
