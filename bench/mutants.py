"""Do the tests notice broken code? Break one thing of `builder/` at a time, and run them.

A seeded sample of conditions, constants and returns (bench/mutations.py) is broken, each in a copy
of the package, and the unit tests that cover its line are run, the quickest first, until one fails.
A line that runs only at import is covered by the tests of its module. A hang counts as noticed.

Engine tests run the commands in processes of their own, and are not measured: a line that no unit
test covers counts as not noticed. Coverage is kept in out/mutants/ until a file of `builder/` or
`tests/unit/` changes.

Exits with 1 where less than REACH of all is noticed, or less than REACH_OF_PROOF of what proves
images.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from coverage import CoverageData
from mutations import Mutation, mutations

PROJECT = Path(__file__).resolve().parents[1]
KEPT = PROJECT / "out/mutants"
PYTEST = str(Path(sys.executable).parent / "pytest")
REACH, REACH_OF_PROOF = 0.90, 0.97
PROOF = ("builder/verify", "builder/proof", "builder/policy", "builder/pull")
BUDGET_S = 60.0  # of recorded test time for each mutant
LIMIT_S = 240.0
NOTICED, SURVIVED, NOT_COVERED = "noticed", "survived", "not covered"


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """The tests that run each line of each file, and the seconds of each test."""

    tests: Mapping[str, Mapping[int, Sequence[str]]]
    seconds: Mapping[str, float]

    def tests_of(self, file: str, lines: range) -> list[str]:
        """Those that cover a mutation, the quickest first, within the budget."""
        by_line = self.tests.get(file, {})
        names = {name for line in lines for name in by_line.get(line, ())}
        if not names - {""} and any(line in by_line for line in lines):  # runs at import
            names = {name for line in by_line for name in by_line[line]}
        chosen, total = [], 0.0
        for name in sorted(names - {""}, key=lambda name: (self.seconds.get(name, 1.0), name)):
            total += self.seconds.get(name, 1.0)
            if total > BUDGET_S:
                break
            chosen.append(name)
        return chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came of one mutant."""

    file: str
    line: int
    change: str
    outcome: str
    tests: int


# ---- Coverage ----


def measured() -> Coverage:
    """The coverage of the unit tests, measured anew where something changed."""
    key = hashlib.sha256(b"".join(_contents())).hexdigest()[:16]
    data, results = KEPT / f"{key}.coverage", KEPT / f"{key}.xml"
    if not results.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        print("measuring the coverage of the unit tests ...", flush=True)
        options = ["--cov=builder", "--cov-context=test", "--cov-report=", f"--junitxml={results}"]
        subprocess.run(
            [PYTEST, "-q", "-n", "2", "-p", "no:cacheprovider", *options, "tests/unit"],
            cwd=PROJECT,
            env={**os.environ, "COVERAGE_FILE": str(data)},
            stdout=subprocess.DEVNULL,
            check=False,  # what fails already notices nothing more
        )
    return _read(data, results)


def _contents() -> Iterator[bytes]:
    for folder in ("builder", "tests/unit"):
        for file in sorted((PROJECT / folder).rglob("*.py")):
            yield file.read_bytes()


def _read(data: Path, results: Path) -> Coverage:
    kept = CoverageData(basename=str(data))
    kept.read()
    tests: dict[str, dict[int, list[str]]] = {}
    for file in kept.measured_files():
        contexts = kept.contexts_by_lineno(file)
        tests[str(Path(file).relative_to(PROJECT))] = {
            line: sorted({name.partition("|")[0] for name in names})
            for line, names in contexts.items()
        }
    seconds: dict[str, float] = defaultdict(float)
    for case in ET.parse(results).iter("testcase"):
        module, _, kind = case.get("classname", "").partition(".test_")
        name, _, of_class = kind.partition(".")
        file = f"{module.replace('.', '/')}/test_{name}.py"
        parts = [file, *filter(None, [of_class]), case.get("name", "")]
        seconds["::".join(parts)] += float(case.get("time") or 0)
    return Coverage(tests=tests, seconds=seconds)


# ---- Mutants ----


def sample(folders: Sequence[str], count: int, seed: int) -> list[tuple[str, Mutation]]:
    """So many mutations of the files in these folders, each as likely as any other."""
    files = sorted(
        str(path.relative_to(PROJECT))
        for folder in folders
        for path in (PROJECT / folder).rglob("*.py")
    )
    known = [(file, one) for file in files for one in mutations((PROJECT / file).read_bytes())]
    return random.Random(seed).sample(known, min(count, len(known)))


def tried(file: str, mutation: Mutation, coverage: Coverage) -> Result:
    """Run the tests that cover a mutant, in a copy of the package that has it."""
    source = (PROJECT / file).read_bytes()
    tests = coverage.tests_of(file, mutation.lines)
    outcome = NOT_COVERED
    if tests:
        with tempfile.TemporaryDirectory(prefix="mutant-") as name:
            shutil.copytree(PROJECT / "builder", Path(name) / "builder")
            (Path(name) / file).write_bytes(mutation.apply(source))
            outcome = SURVIVED if _pass(tests, name) else NOTICED
    return Result(
        file=file,
        line=source[: mutation.start].count(b"\n") + 1,
        change=mutation.describe(source),
        outcome=outcome,
        tests=len(tests),
    )


def _pass(tests: Sequence[str], folder: str) -> bool:
    """Whether tests pass with the package of a folder; not if they hang."""
    child = subprocess.Popen(
        [PYTEST, "-x", "-q", "-p", "no:cacheprovider", *tests],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": folder, "PYTEST_ADDOPTS": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return child.wait(timeout=LIMIT_S) == 0
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        child.wait()
        return False


# ---- What came of them ----


def rate(results: Sequence[Result]) -> float:
    """The part that was noticed, from 0 to 1."""
    return sum(one.outcome == NOTICED for one in results) / max(1, len(results))


def print_results(results: Sequence[Result]) -> None:
    by_package: dict[str, list[Result]] = defaultdict(list)
    for one in results:
        by_package["/".join(one.file.split("/")[:2])].append(one)
    print(f"{'package':32}{'tried':>7}{NOTICED:>9}{SURVIVED:>10}{NOT_COVERED:>13}")
    for package, some in [*sorted(by_package.items()), ("all", list(results))]:
        counts = [sum(one.outcome == name for one in some) for name in (SURVIVED, NOT_COVERED)]
        print(f"{package:32}{len(some):7}{rate(some):9.0%}{counts[0]:10}{counts[1]:13}")
    for one in sorted(results, key=lambda one: (one.file, one.line)):
        if one.outcome != NOTICED:
            print(f"{one.outcome}: {one.file}:{one.line}: {one.change}  ({one.tests} tests)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=["builder"], metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    coverage = measured()
    chosen = sample(options.only, options.count, options.seed)
    results: list[Result] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda one: tried(one[0], one[1], coverage), chosen):
            results.append(result)
            print(f"\r{len(results)} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print_results(results)
    if options.json:
        options.json.write_text(json.dumps([vars_of(one) for one in results], indent=1))
    proof = [one for one in results if one.file.startswith(tuple(f"{name}/" for name in PROOF))]
    return 0 if rate(results) >= REACH and (not proof or rate(proof) >= REACH_OF_PROOF) else 1


def vars_of(result: Result) -> dict[str, object]:
    return {name: getattr(result, name) for name in result.__slots__}


if __name__ == "__main__":
    sys.exit(main())
