"""Lint: our own rules, hadolint and ShellCheck over many specs."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from builder.compile.lint.findings import LintReport, Problem
from builder.compile.lint.linters import (
    LINTERS,
    Piece,
    Place,
    Program,
    Remark,
    find,
    places,
    remarks,
    version,
)
from builder.compile.lint.reading import read
from builder.compile.lint.rules import own_problems
from builder.model import Spec
from builder.system.files import write_atomically
from builder.system.locks import locked
from builder.system.process import Processes

PARSERS = {"dockerfile_parse": "dockerfile-parse", "spython": "spython"}  # module: package


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
    ran = [*_versions(programs, store, processes), *_parsers(store)]
    keys = Keys([rules_digest(), *ran])
    keyed = [(keys.of(spec, locked=locked), spec) for spec in specs]
    known = {key: store.problems(key) for key, _ in keyed}
    fresh = {key: spec for key, spec in keyed if known[key] is None}
    for key, problems in _look(fresh, programs, processes, jobs, locked=locked).items():
        known[key] = problems
        store.keep(key, problems)
    store.save()
    findings = [
        problem.of(spec.image.identifier) for key, spec in keyed for problem in known[key] or ()
    ]
    return LintReport(
        findings=tuple(sorted(findings)),
        ran=tuple(ran),
        missing=tuple(name for name in LINTERS if name not in programs),
        specs=len(specs),
        cached=len(specs) - len(fresh),
    )


def _parsers(store: Cache) -> list[str]:
    """Each parser with its version, which is sought once as long as its folder stays the same."""
    found = []
    for module, package in PARSERS.items():
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        stamp = f"{spec.origin} {Path(spec.origin).parent.parent.stat().st_mtime_ns}"
        text = store.text(stamp)
        if text is None:
            from importlib.metadata import version as installed  # noqa: PLC0415 - slow to import

            text = f"{package} {installed(package)}"
            store.keep_text(stamp, text)
        found.append(text)
    return found


def _versions(programs: Mapping[str, Program], store: Cache, processes: Processes) -> list[str]:
    """Each linter with its version, which is asked once as long as its file stays the same."""
    found = []
    for program in programs.values():
        text = store.text(program.stamp)
        if text is None:
            text = version(program, processes)
            store.keep_text(program.stamp, text)
        found.append(text)
    return found


def _look(
    specs: Mapping[str, Spec],
    programs: Mapping[str, Program],
    processes: Processes,
    jobs: int,
    *,
    locked: bool,
) -> dict[str, list[Problem]]:
    if not specs:
        return {}
    own, where = {}, {}
    for key, spec in specs.items():
        reading = read(spec, locked=locked)
        own[key], where[key] = own_problems(reading), list(places(spec, reading))
    pieces = (place.piece for some in where.values() for place in some)
    said = remarks(pieces, programs, processes, jobs)
    return {key: own[key] + _of_linters(where[key], said) for key in specs}


def _of_linters(where: Sequence[Place], said: Mapping[Piece, list[Remark]]) -> list[Problem]:
    found = [
        Problem(
            file=place.file,
            line=place.line(remark.line),
            level=remark.level,
            rule=remark.rule,
            text=remark.text,
        )
        for place in where
        for remark in said.get(place.piece, ())
    ]
    return list(dict.fromkeys(found))  # two RUNs share the ENV before them, and its remarks


MOST = 20_000  # results that are kept, the newest
_FIELDS = frozenset(field.name for field in dataclasses.fields(Problem))


class Cache:
    """Results by key, in `FOLDER/lint.json`; nothing is kept without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._entries = self._read()
        self._new: dict[str, object] = {}

    def problems(self, key: str) -> list[Problem] | None:
        """What was found for a key, or nothing if it is not known or not whole."""
        return _problems(self._entries.get(f"spec {key}"))

    def keep(self, key: str, problems: Sequence[Problem]) -> None:
        self._new[f"spec {key}"] = [dataclasses.asdict(problem) for problem in problems]

    def text(self, key: str) -> str | None:
        """A short text, such as a program's version."""
        found = self._entries.get(f"text {key}")
        return found if isinstance(found, str) else None

    def keep_text(self, key: str, text: str) -> None:
        self._new[f"text {key}"] = text

    def save(self) -> None:
        """Add what is new. A folder that cannot be written to costs time, and nothing else."""
        if self._folder is None or not self._new:
            return
        with contextlib.suppress(OSError), locked(self._folder, "lint"):
            entries = {**self._read(), **self._new}
            kept = dict(list(entries.items())[-MOST:])
            write_atomically(self._folder / "lint.json", json.dumps(kept, separators=(",", ":")))

    def _read(self) -> dict[str, object]:
        if self._folder is None:
            return {}
        try:
            found = json.loads((self._folder / "lint.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _problems(stored: object) -> list[Problem] | None:
    if not isinstance(stored, list):
        return None
    if not all(isinstance(one, dict) and one.keys() == _FIELDS for one in stored):
        return None
    return [Problem(**one) for one in stored]


def rules_digest() -> str:
    """Changes whenever a rule does: a digest of this package's own source."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


class Keys:
    """The keys of specs, for one state of rules and linters."""

    def __init__(self, state: Sequence[str]) -> None:
        self._begin = "\0".join(state)
        self._digests: dict[str, bytes] = {}

    def of(self, spec: Spec, *, locked: bool) -> str:
        """A SHA-256 in hexadecimal over everything that the rules look at."""
        words = [self._begin, spec.image.cell.arch, str(locked), spec.dockerfile, spec.singularity]
        words += [source.in_context for source in spec.sources]
        digest = hashlib.sha256("\0".join(words).encode())
        digest.update(self._files(spec.files))
        return digest.hexdigest()

    def _files(self, files: Mapping[str, str]) -> bytes:
        """Most specs hold the same files: each text is hashed once."""
        found = []
        for name, text in files.items():
            if text not in self._digests:
                self._digests[text] = hashlib.sha256(text.encode()).digest()
            found.append(name.encode() + b"\0" + self._digests[text])
        return b"".join(found)
