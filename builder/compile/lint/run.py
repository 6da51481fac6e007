"""Lint many specs with our own rules, hadolint and ShellCheck; unchanged specs are not read again.

Results are kept by content in one JSON file. Several processes may use it at once: it is replaced
as a whole, under a lock. A file that cannot be read, or does not hold what it should, is empty.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from pathlib import Path

from builder.compile.lint import contents, downloads, formats  # noqa: F401 - they fill RULES
from builder.compile.lint.findings import RULES, LintFinding, LintReport
from builder.compile.lint.linters import LINTERS, find, remarks, texts_of, version
from builder.compile.lint.reading import Reading, read
from builder.model import Spec
from builder.system.files import read_json, write_atomically
from builder.system.locks import locked as lock
from builder.system.process import Processes

PARSERS = ("dockerfile-parse", "spython")
MOST = 20_000  # results that are kept, the newest
_FIELDS = frozenset(field.name for field in dataclasses.fields(LintFinding))


def lint(
    specs: Sequence[Spec],
    *,
    processes: Processes,
    search_path: str,
    cache: Path | None,
    jobs: int,
    locked: bool = False,
) -> LintReport:
    """Look at every spec; the findings are sorted by image, file and line.

    `search_path` is where hadolint and ShellCheck are sought beside the folder of this Python's
    programs; one that is missing is named in the report, and our own rules are applied all the
    same. `cache` is a folder that keeps results by content. `locked`: the project has a lock, so
    bases must be pinned. Raises `StepFailed` when a linter itself fails.
    """
    store = Cache(cache)
    programs = find(search_path)
    ran = [
        *(_version(name, path, store, processes) for name, path in programs.items()),
        *(f"{parser} {installed_version(parser)}" for parser in PARSERS),
    ]
    state = [rules_digest(), *ran, str(locked)]
    keyed = {_key(spec, state): spec for spec in specs}
    fresh = {key: spec for key, spec in keyed.items() if store.findings(key) is None}
    readings = {key: read(spec, locked=locked) for key, spec in fresh.items()}
    texts = {key: list(texts_of(reading)) for key, reading in readings.items()}
    remarked = remarks(
        (text for entries in texts.values() for text, _, _ in entries), programs, processes, jobs
    )
    for key, reading in readings.items():
        image = reading.spec.image.identifier
        theirs = [
            LintFinding(
                image=image, file=file, **remark._replace(line=remark.line + before)._asdict()
            )
            for text, file, before in texts[key]
            for remark in remarked.get(text, ())
        ]
        store.keep(key, [*own_findings(reading), *theirs])
    store.save()
    return LintReport(
        findings=tuple(sorted(finding for key in keyed for finding in store.findings(key) or ())),
        ran=tuple(ran),
        missing=tuple(name for name in LINTERS if name not in programs),
        specs=len(specs),
        cached=len(specs) - len(fresh),
    )


def own_findings(reading: Reading) -> list[LintFinding]:
    """The findings of our own rules in a spec."""
    image = reading.spec.image.identifier
    return [
        LintFinding(image=image, level=rule.level, rule=rule.name, **hit._asdict())
        for rule in RULES
        for hit in rule.check(reading)
    ]


def _version(name: str, path: str, store: Cache, processes: Processes) -> str:
    """A linter with its version, which is asked once as long as its file stays the same."""
    about = Path(path).stat()
    stamp = f"{path} {about.st_size} {about.st_mtime_ns}"
    text = store.entries.get(stamp)
    if not isinstance(text, str):
        text = store.new[stamp] = version(name, path, processes)
    return text


class Cache:
    """Results by key, in `FOLDER/lint.json`; nothing is kept without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.entries = self._read()
        self.new: dict[str, object] = {}

    def findings(self, key: str) -> list[LintFinding] | None:
        """The findings of a spec; None if it is not known."""
        stored = self.new.get(key, self.entries.get(key))
        if isinstance(stored, list) and all(
            isinstance(entry, dict) and entry.keys() == _FIELDS for entry in stored
        ):
            return [LintFinding(**entry) for entry in stored]
        return None

    def keep(self, key: str, findings: Sequence[LintFinding]) -> None:
        self.new[key] = [dataclasses.asdict(finding) for finding in findings]

    def save(self) -> None:
        """Add what is new. A folder that cannot be written to costs time, and nothing else."""
        if self._folder is None or not self.new:
            return
        with contextlib.suppress(OSError), lock(self._folder, "lint"):
            entries = dict([*{**self._read(), **self.new}.items()][-MOST:])
            write_atomically(self._folder / "lint.json", json.dumps(entries))

    def _read(self) -> dict[str, object]:
        return read_json(self._folder / "lint.json") if self._folder else {}


def rules_digest() -> str:
    """A digest of this package's own source: it changes whenever a rule does."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


def _key(spec: Spec, state: Sequence[str]) -> str:
    """A SHA-256 in hexadecimal over everything that the rules look at."""
    content = [
        *(*state, spec.image.identifier, spec.image.cell.arch, spec.dockerfile, spec.singularity),
        *(source.in_context for source in spec.sources),
        *(text for file in sorted(spec.files.items()) for text in file),
    ]
    return hashlib.sha256("\0".join(content).encode()).hexdigest()
