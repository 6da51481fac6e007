"""`build-images lint`: look for faults in specs; builds do this, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from builder.build.planning import compile_images, load_images
from builder.cli.options import Parser, SelectorOptions
from builder.compile.lint import lint
from builder.compile.lint.findings import LintReport
from builder.load.site import layers_of
from builder.model import Spec
from builder.model.errors import LintFailed, counted
from builder.model.inputs import LOCK
from builder.system.home import Home
from builder.system.process import Processes


class LintOptions(SelectorOptions):
    json: bool
    no_cache: bool


def declare(parser: Parser) -> None:
    parser.add_json()
    parser.add_flag("--no-cache", "lint unchanged specs again")


def run(options: LintOptions) -> int:
    """Print every finding; return 1 if any of them is an error."""
    specs = compile_images(options.project, load_images(options.project, options.selection))
    report = look(options.project, specs, cached=not options.no_cache)
    options.show(report.as_json(), report.as_text)
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
    say(report.as_text() if report.findings or report.missing else report.summary()[0])
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
