"""`build-images lint`: look for faults in specs; builds do this, too."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from builder.build.planning import compiled, load_plan
from builder.cli.options import Parser, SelectorOptions, add_flag
from builder.compile.lint import lint
from builder.compile.lint.findings import LintReport
from builder.load.layers import layers_of
from builder.model import Spec
from builder.model.errors import LintFailed, counted
from builder.model.inputs import LOCK
from builder.system.home import Home
from builder.system.process import Processes


class LintOptions(SelectorOptions):
    """The options of `lint`."""

    json: bool
    no_cache: bool


def declare(parser: Parser) -> None:
    """Add the options of `lint`."""
    add_flag(parser, "--json", "as JSON")
    add_flag(parser, "--no-cache", "lint unchanged specs again")


def run(options: LintOptions) -> int:
    """Print every finding; return 1 if any of them is an error."""
    specs = compiled(options.project, load_plan(options.project, options.selection))
    report = look(options.project, specs, cached=not options.no_cache)
    print(json.dumps(as_json(report), indent=1) if options.json else as_text(report))
    return 1 if report.errors else 0


def check(
    project: Path, specs: Sequence[Spec], say: Callable[[str], None], *, cached: bool = True
) -> None:
    """Lint specs before they are built or written; pass the findings to `say`.

    Raises `LintFailed` if a finding is an error.
    """
    if not specs:
        return
    report = look(project, specs, cached=cached)
    say(as_text(report) if report.findings or report.missing else summary(report)[0])
    if report.errors:
        raise LintFailed(
            f"{counted(report.errors, 'error')} found by lint in the specs; see above",
            hint="docs/lint.md explains each rule; --no-lint continues without these checks",
        )


def look(project: Path, specs: Sequence[Spec], *, cached: bool = True) -> LintReport:
    """Lint specs with this machine's linters; results are cached in the builder's home."""
    home = Home.of_environment()
    return lint(
        specs,
        processes=Processes(),
        search_path=home.search_path(),
        cache=home.path / "lint" if cached else None,
        jobs=min(4, os.cpu_count() or 1),
        locked=_pins_bases(project),
    )


def _pins_bases(project: Path) -> bool:
    """Return whether a lock has base images; it has none if no registry was reachable."""
    locks = [layer.folder / LOCK for layer in layers_of(project).holders(LOCK)]
    return any("\n  - reference: " in lock.read_text(encoding="utf-8") for lock in locks)


def as_text(report: LintReport) -> str:
    """Return a line for each finding, its hint below it, and the summary."""
    lines = list[str]()
    for finding in report.findings:
        lines += [str(finding), *([f"    {finding.hint}"] if finding.hint else ())]
    return "\n".join([*lines, *summary(report)])


def summary(report: LintReport) -> list[str]:
    """Return the numbers of findings and specs, the linters that ran and those that are missing."""
    unchanged = f"; {report.cached} unchanged since an earlier run" if report.cached else ""
    counts = f"{counted(report.errors, 'error')}, {counted(report.warnings, 'warning')}"
    lines = [
        f"{counts} in {counted(report.specs, 'spec')} linted{unchanged}",
        f"linters: our own rules, {', '.join(report.ran)}",
    ]
    if report.missing:
        absent = " and ".join(report.missing)
        lines.append(f"missing, not run: {absent}; docs/lint.md says how to get them")
    return lines


def as_json(report: LintReport) -> dict[str, object]:
    """Return the report as JSON values; linters under `missing` did not run."""
    return {
        "specs": report.specs,
        "cached": report.cached,
        "errors": report.errors,
        "warnings": report.warnings,
        "linters": list(report.ran),
        "missing": list(report.missing),
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
    }
