"""Lint: our own rules, hadolint and ShellCheck over many specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from builder.compile.lint.cache import Cache, Keys, rules_digest
from builder.compile.lint.findings import LintReport, Problem
from builder.compile.lint.pieces import Piece, Place, places
from builder.compile.lint.programs import LINTERS, Program, Remark, find, remarks, version
from builder.compile.lint.reading import read
from builder.compile.lint.rules import own_problems
from builder.model import Spec
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
