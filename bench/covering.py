"""Which tests run which lines of `builder/`, measured per test file and kept in out/mutants/.

What is kept of a test file holds until it, a helper of its folder or a file of `builder/` changes.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from coverage import Coverage as Measurement
from coverage import CoverageData

PROJECT = Path(__file__).resolve().parents[1]
KEPT = PROJECT / "out/mutants"
PYTEST = str(Path(sys.executable).parent / "pytest")
BUDGET_S = 60.0  # of recorded test time for each mutant
_UNITS = PROJECT / "tests/unit"
_ENGINES = PROJECT / "tests/engines"
_IMPORT = ""  # the context of lines that run before any test


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """The tests that run each line of each source file, and the seconds of each test.

    The empty name stands for what runs at import.
    """

    tests: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(_lines))
    seconds: dict[str, float] = field(default_factory=dict)

    def tests_of(self, file: str, lines: range) -> list[str]:
        """Those that cover a mutation, the closest and quickest first, within the budget.

        What runs at import, as a table does, is covered by the tests of its module, of the modules
        that import it, and of the test files that import it: the tests that run its lines are those
        in which the module happened to be imported, and one that compares a constant with something
        else runs none of them.
        """
        names = self._names(file, lines)
        importing = importing_files(file)
        if self.is_run_at_import(file, lines):
            names = names.union(*map(self._of_module, {file, *importing}))
            names |= {name for name in self.seconds if _file(name) in importing}
        chosen: list[str] = []
        total = 0.0
        for name in sorted(names - {_IMPORT}, key=lambda name: self._order(name, importing)):
            total += self.seconds.get(name, 1.0)
            if total > BUDGET_S and chosen:
                break
            chosen.append(name)
        return chosen

    def _order(self, name: str, importing: Collection[str]) -> tuple[bool, float, str]:
        return _file(name) not in importing, self.seconds.get(name, 1.0), name

    def is_run_at_import(self, file: str, lines: range) -> bool:
        """Whether lines are outside of functions, or in one that is called at import."""
        return lines[0] not in lines_in_functions(file) or _IMPORT in self._names(file, lines)

    def _names(self, file: str, lines: range) -> set[str]:
        by_line = self.tests.get(file, {})
        return set().union(*(by_line.get(line, ()) for line in lines))

    def _of_module(self, file: str) -> set[str]:
        return set().union(*self.tests.get(file, {}).values())

    def add(self, record: Mapping[str, Mapping[str, object]]) -> None:
        """Add what is kept of one test file."""
        for name, files in _object(record["lines"]).items():
            for file, lines in _object(files).items():
                for line in _list(lines):
                    self.tests[file][line].add(name)
        self.seconds.update(record["seconds"])  # type: ignore[arg-type]


def _lines() -> dict[int, set[str]]:
    return defaultdict(set)


def _file(test: str) -> str:
    return test.partition("::")[0]


@functools.cache
def importers(file: str) -> set[str]:
    """The files of `builder/` and of the unit tests that import one of `builder/`."""
    path = Path(file)
    word = (path.parent if path.stem == "__init__" else path).stem.encode()
    return {name for name, source in _sources().items() if word in source and file in _used(name)}


@functools.cache
def _sources() -> dict[str, bytes]:
    paths = [*(PROJECT / "builder").rglob("*.py"), *_UNITS.rglob("test_*.py")]
    return {str(path.relative_to(PROJECT)): path.read_bytes() for path in paths}


@functools.cache
def _used(name: str) -> frozenset[str]:
    """The files of `builder/` that a file imports."""
    return frozenset(
        _file_of(module)
        for node in ast.walk(ast.parse(_sources()[name]))
        if isinstance(node, ast.ImportFrom) and node.module
        for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    )


@functools.cache
def lines_in_functions(file: str) -> frozenset[int]:
    """The lines of the bodies of functions."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse((PROJECT / file).read_bytes()))
    bodies = [part for node in nodes if isinstance(node, functions) for part in node.body]
    return frozenset(
        line for part in bodies for line in range(part.lineno, (part.end_lineno or 0) + 1)
    )


@functools.cache
def importing_files(file: str) -> set[str]:
    """The files that import one of `builder/`, or its package where that hands on its names."""
    direct = importers(file)
    package = str(Path(file).parent / "__init__.py")
    return direct | (importers(package) if package in direct else set())


def _file_of(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}.py" if (PROJECT / f"{path}.py").exists() else f"{path}/__init__.py"


def coverage_of_units() -> Coverage:
    """The coverage of the unit tests; of files that changed, it is measured anew."""
    files = sorted(_UNITS.rglob("test_*.py"))
    records = {file: _record_of(file) for file in files}
    if stale := [file for file, record in records.items() if not record.exists()]:
        print(f"measuring what {len(stale)} files of unit tests cover ...", flush=True)
        _measure_units(stale, records)
    return _coverage_of(records.values())


def coverage_of_engines(*, measured: Sequence[Path] = ()) -> Coverage:
    """What is kept of the coverage of engine tests, after some of them were measured."""
    for file in measured:
        if not (record := _record_of(file.resolve())).exists():
            print(f"measuring what {file.name} covers ...", flush=True)
            _measure_engines(file.resolve(), record)
    return _coverage_of(filter(Path.exists, map(_record_of, sorted(_ENGINES.glob("test_*.py")))))


def _coverage_of(records: Iterable[Path]) -> Coverage:
    coverage = Coverage()
    for record in records:
        coverage.add(json.loads(record.read_text()))
    return coverage


# ---- What is kept ----


def _record_of(test: Path) -> Path:
    """The record of a test file, named by all that its coverage depends on."""
    content = hashlib.sha256()
    folder = _UNITS if test.is_relative_to(_UNITS) else _ENGINES
    helpers = [file for file in folder.glob("*.py") if not file.name.startswith("test_")]
    for file in sorted([*(PROJECT / "builder").rglob("*.py"), *helpers, test]):
        content.update(str(file.relative_to(PROJECT)).encode())
        content.update(file.read_bytes())
    below = test.parent.relative_to(folder.parent)
    return KEPT / below / f"{test.stem}-{content.hexdigest()[:16]}.json"


def _keep(record: Path, lines: Mapping[str, Mapping[str, object]], seconds: object) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    for earlier in record.parent.glob(f"{record.stem.rpartition('-')[0]}-*.json"):
        earlier.unlink()
    record.write_text(json.dumps({"lines": lines, "seconds": seconds}))


# ---- Measuring ----


def _measure_units(tests: Sequence[Path], records: Mapping[Path, Path]) -> None:
    """Run some files of unit tests, and keep what each of their tests covers."""
    with tempfile.TemporaryDirectory() as name:
        data, results = Path(name) / "coverage", Path(name) / "results.xml"
        _run(
            ["-n", "2", "--cov-context=test", f"--junitxml={results}", *map(str, tests)],
            {"COVERAGE_FILE": str(data)},
        )
        lines, seconds = _lines_by_test(data), _seconds(results)
    for test in tests:
        prefix = f"{test.relative_to(PROJECT)}::"
        own = {key: seconds[key] for key in seconds if key.startswith(prefix)}
        mine = {key: lines[key] for key in lines if key in own or key == _IMPORT}
        _keep(records[test], mine, own)


def _measure_engines(test: Path, record: Path) -> None:
    """Run one file of engine tests, and keep what it and the programs that it starts cover."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)  # programs that run as an ordinary user write theirs, too
        context = str(test.relative_to(PROJECT))
        config = folder / "config"
        config.write_text(
            f"[run]\nsource = builder\nparallel = true\npatch = subprocess\n"
            f"data_file = {folder / 'coverage'}\ncontext = {context}\n"
        )
        results = folder / "results.xml"
        _run([f"--cov-config={config}", f"--junitxml={results}", str(test)], {})
        measurement = Measurement(config_file=str(config))
        measurement.combine([name], strict=False)
        measurement.save()
        lines = _lines_by_test(folder / "coverage")
        seconds = {context: sum(_seconds(results).values())}
    _keep(record, {key: lines[key] for key in lines if key == context}, seconds)


def _run(options: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run tests under coverage; ends this program where they do not come to their end."""
    ended = subprocess.run(
        [PYTEST, "-q", "-p", "no:cacheprovider", "--cov=builder", "--cov-report=", *options],
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode not in {0, 1}:  # a test that fails already notices nothing more
        sys.exit(f"the tests did not run to their end:\n{ended.stdout}{ended.stderr}")


def _lines_by_test(data: Path) -> dict[str, dict[str, list[int]]]:
    """The lines of each source file that each test runs."""
    kept = CoverageData(basename=str(data))
    kept.read()
    lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(kept.measured_files()):
        source = str(Path(file).relative_to(PROJECT))
        for line, contexts in kept.contexts_by_lineno(file).items():
            for name in {context.rpartition("|")[0] or context for context in contexts}:
                lines[name][source].append(line)
    return lines


def _seconds(results: Path) -> dict[str, float]:
    """The seconds of each test that passed, from a JUnit file.

    One that fails already would notice every mutant, and one that is skipped none.
    """
    seconds: dict[str, float] = defaultdict(float)
    for name, of_case in _passed(results):
        seconds[name] += of_case
    return seconds


def _passed(results: Path) -> Iterator[tuple[str, float]]:
    for case in ET.parse(results).iter("testcase"):
        if any(case.find(kind) is not None for kind in ("failure", "error", "skipped")):
            continue
        module, _, kind = case.get("classname", "").partition(".test_")
        name, _, of_class = kind.partition(".")
        file = f"{module.replace('.', '/')}/test_{name}.py"
        parts = [file, *filter(None, [of_class]), case.get("name", "")]
        yield "::".join(parts), float(case.get("time") or 0)


def _object(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _list(value: object) -> list[int]:
    assert isinstance(value, list)
    return value
