"""Lint every spec before anything is built; unchanged specs are not read again.

Our own rules check both texts of a spec; hadolint and ShellCheck check them if this machine has
them. docs/lint.md lists our rules and the ignored rules of other linters, with reasons.

Results are cached by content in one JSON file. Several processes may use it at once: it is replaced
atomically, under a lock. A file that cannot be read or is not valid counts as empty.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version as installed_version
from pathlib import Path

from builder.compile.lint import contents, formats  # noqa: F401 - they fill RULES
from builder.compile.lint.findings import RULES, LintFinding, LintReport
from builder.compile.lint.linters import LINTERS, find, linter_findings, texts_of, version
from builder.compile.lint.reading import DOCKERFILE, Reading, read
from builder.model import Spec
from builder.system.files import read_json, write_atomically
from builder.system.locks import locked as lock
from builder.system.process import Processes

__all__ = ["RULES", "lint", "own_findings"]
PARSERS = ("dockerfile-parse", "spython")
FILE = "lint.json"
MOST = 20_000  # results in the file; older ones are dropped


def lint(
    specs: Sequence[Spec],
    *,
    processes: Processes,
    search_path: str,
    cache: Path | None,
    jobs: int,
    locked: bool = False,
) -> LintReport:
    """Lint every spec; the findings are sorted by image, file and line.

    hadolint and ShellCheck are searched for beside this Python and on `search_path`; the report
    names a missing one, and our own rules still apply. `cache` is a folder for results by content.
    `locked`: the project has a lock; bases must be pinned. Raises `StepFailed` if a linter fails.
    """
    programs = find(search_path)
    ran = [
        *(version(name, path, processes) for name, path in programs.items()),
        *(f"{parser} {installed_version(parser)}" for parser in PARSERS),
    ]
    state = [rules_digest(), *ran, str(locked)]
    keyed = {_key(spec, state): spec for spec in specs}
    known = _known(cache, keyed)
    readings = {key: read(spec, locked=locked) for key, spec in keyed.items() if key not in known}
    new = _findings(readings, programs, processes, jobs)
    _save(cache, new)
    of_image = {spec.image.identifier: spec for spec in specs}
    findings = sorted(itertools.chain(*known.values(), *new.values()))
    return LintReport(
        findings=tuple(_placed(finding, of_image[finding.image]) for finding in findings),
        ran=tuple(ran),
        missing=tuple(name for name in LINTERS if name not in programs),
        specs=len(specs),
        cached=len(specs) - len(new),
    )


def _placed(finding: LintFinding, spec: Spec) -> LintFinding:
    """Return a finding with its origin, which is not cached: lines of a recipe move."""
    origin = spec.origin_text(finding.line) if finding.file == DOCKERFILE else ""
    return dataclasses.replace(finding, origin=origin)


def _findings(
    readings: Mapping[str, Reading], programs: Mapping[str, str], processes: Processes, jobs: int
) -> dict[str, list[LintFinding]]:
    """Return the findings in each spec, by our rules and linters; equal texts are read once."""
    texts = {key: list(texts_of(reading)) for key, reading in readings.items()}
    by_text = linter_findings(
        (text for entries in texts.values() for text, _, _ in entries), programs, processes, jobs
    )
    findings = {key: own_findings(reading) for key, reading in readings.items()}
    for key, reading in readings.items():
        image = reading.spec.image.identifier
        for text, file, before in texts[key]:
            for finding in by_text.get(text, ()):
                line = finding.line + before
                findings[key].append(
                    dataclasses.replace(finding, image=image, file=file, line=line)
                )
    return findings


def own_findings(reading: Reading) -> list[LintFinding]:
    """Return the findings of our own rules in a spec."""
    image = reading.spec.image.identifier
    return [
        LintFinding(image=image, level=rule.level, rule=rule.name, **hit._asdict())
        for rule in RULES
        for hit in rule.check(reading)
    ]


def _known(folder: Path | None, keys: Iterable[str]) -> dict[str, list[LintFinding]]:
    """Return the stored findings of specs, by key."""
    entries = read_json(folder / FILE) if folder else {}
    known: dict[str, list[LintFinding]] = {}
    for key in keys:
        stored = entries.get(key)
        if isinstance(stored, list):
            with contextlib.suppress(TypeError):  # not the fields of a finding
                known[key] = [LintFinding(**entry) for entry in stored]
    return known


def _save(folder: Path | None, new: Mapping[str, Sequence[LintFinding]]) -> None:
    """Add new findings to the cache; if its folder is not writable, they are not cached."""
    if folder is None or not new:
        return
    rows = {key: list(map(dataclasses.asdict, findings)) for key, findings in new.items()}
    with contextlib.suppress(OSError), lock(folder, "lint"):
        entries = {**read_json(folder / FILE), **rows}
        write_atomically(folder / FILE, json.dumps(dict([*entries.items()][-MOST:])))


def rules_digest() -> str:
    """Return a digest of this package's own source and tables: it changes whenever a rule does."""
    folder = Path(__file__).parent
    sources = sorted([*folder.glob("*.py"), *folder.glob("*.yaml")])
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


def _key(spec: Spec, state: Sequence[str]) -> str:
    """Return a SHA-256 in hexadecimal over everything that the rules look at."""
    content = [
        *(*state, spec.image.identifier, spec.image.cell.arch, spec.dockerfile, spec.singularity),
        *(source.in_context for source in spec.sources),
        *(text for file in sorted(spec.files.items()) for text in file),
    ]
    return hashlib.sha256("\0".join(content).encode()).hexdigest()
