"""Rules of lint, and the findings that they and the linters report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

from builder.compile.lint.reading import HOST, SHELL, TABLES, Reading, SpecCommand
from builder.model.errors import counted, shortened

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class LintFinding:
    """A fault in an image's spec.

    `level` is error or warning; `rule` is a name in docs/lint.md, or a code of hadolint or
    ShellCheck (DL3015, SC2164). `file` is a path in the spec's folder, `line` counts from 1.
    `origin` is the file, line and key of the recipe, base or check that the line comes from.
    """

    image: str
    file: str
    line: int
    level: str
    rule: str
    text: str
    hint: str = ""
    origin: str = ""

    def __str__(self) -> str:
        where = f"{self.image}/{self.file}:{self.line}"
        return f"{where}: {self.level} {self.rule}: {self.text}"


class Hit(NamedTuple):
    """A violation of one of our own rules."""

    file: str
    line: int
    text: str
    hint: str = ""


def hit(command: SpecCommand, text: str, hint: str = "") -> Hit:
    return Hit(command.file, command.line, text, hint)


Check = Callable[[Reading], Iterator[Hit]]


class Rule(NamedTuple):
    """A rule of our own; docs/lint.md has the reason for its requirement."""

    name: str
    level: str
    requirement: str
    check: Check


RULES: list[Rule] = []  # first those of tables.yaml, then those of each module, as imported


def rule(level: str) -> Callable[[Check], Check]:
    """Register a function that yields hits as a rule; its docstring is the requirement.

    The function `secret_key` becomes the rule `secret-key`.
    """

    def register(check: Check) -> Check:
        requirement = str(check.__doc__).removesuffix(".")
        RULES.append(Rule(check.__name__.replace("_", "-"), level, requirement, check))
        return check

    return register


def _rule_on_commands(
    *,
    name: str,
    level: str,
    requirement: str,
    pattern: str,
    text: str,
    hint: str,
    unless: str = "(?!)",
    on_host: bool = False,
) -> Rule:
    """Return a rule of tables.yaml; each command that matches its pattern is a hit."""
    kinds = (SHELL, HOST) if on_host else (SHELL,)

    def check(reading: Reading) -> Iterator[Hit]:
        for command, match in reading.matches(re.compile(pattern), *kinds):
            if not re.search(unless, command.text):
                words = {"command": shortened(command.text), "match": match.group()}
                yield hit(command, text.format(**words), hint)

    return Rule(name, level, requirement, check)


@dataclass(frozen=True, kw_only=True, slots=True)
class LintReport:
    """The findings in `specs` specs, of which `cached` were unchanged since an earlier run.

    `ran` are the linters that ran, with their versions; `missing` are those that this machine
    lacks. A linter that did not run has not passed.
    """

    findings: tuple[LintFinding, ...]
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

    def as_text(self) -> str:
        """Return a line for each finding, its origin and hint below it, and the summary."""
        lines = list[str]()
        for finding in self.findings:
            origin = finding.origin and f"from {finding.origin}"
            lines += [str(finding), *(f"    {line}" for line in (origin, finding.hint) if line)]
        return "\n".join([*lines, *self.summary()])

    def summary(self) -> list[str]:
        """Return the numbers of findings and specs, the linters that ran and those missing."""
        unchanged = f"; {self.cached} unchanged since an earlier run" if self.cached else ""
        counts = f"{counted(self.errors, 'error')}, {counted(self.warnings, 'warning')}"
        lines = [
            f"{counts} in {counted(self.specs, 'spec')} linted{unchanged}",
            f"linters: our own rules, {', '.join(self.ran)}",
        ]
        if self.missing:
            absent = " and ".join(self.missing)
            lines.append(f"missing, not run: {absent}; docs/lint.md says how to get them")
        return lines

    def as_json(self) -> dict[str, object]:
        """Return the report as JSON values; linters under `missing` did not run."""
        return {
            "specs": self.specs,
            "cached": self.cached,
            "errors": self.errors,
            "warnings": self.warnings,
            "linters": list(self.ran),
            "missing": list(self.missing),
            "findings": [asdict(finding) for finding in self.findings],
        }


RULES += [_rule_on_commands(**row) for row in TABLES["rules"]]
