"""Do the tests notice broken code? Break one thing of `builder/` at a time, and run them.

A seeded sample of conditions, constants and returns (bench/mutations.py) is broken, and the unit
tests that cover its line are run (bench/mutant_runs.py), the quickest first, until one fails. A
line that runs only at import is covered by the tests of its module. A hang counts as noticed.

No engine test runs a mutant: with real engines, as root, broken code that removes, unmounts or ends
processes does it to the home and the builds of this machine. A line that no unit test covers counts
as not noticed. How many of those lines engine tests run is printed after `--engines FILE...`, which
measures that of test files (bench/covering.py): all of tests/engines takes an hour.

Root's mutants run in a PID namespace of their own: one that ends the wrong processes ends its own.

Exits with 1 where less than REACH of all is noticed, or less than REACH_OF_PROOF of what proves
images.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from covering import PROJECT, Coverage, coverage_of_engines, coverage_of_units
from mutant_runs import Mutant, Outcome, run
from mutations import Mutation, mutations

import builder

REACH, REACH_OF_PROOF = 0.90, 0.97
PROOF = ("builder/verify", "builder/trust", "builder/distribute/pull")
TESTS = PROJECT / "tests/unit"
_ALONE = "BUILD_IMAGES_MUTANTS_ALONE"  # set within the namespace
NOTICED, SURVIVED, NOT_COVERED = "noticed", "survived", "not covered"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came of one mutant."""

    file: str
    line: int
    change: str
    outcome: str
    tests: int
    noticed_by: str


# ---- Mutants ----


def sample(folders: Sequence[str], count: int, seed: int) -> list[tuple[str, Mutation]]:
    """Return `count` mutations of files or of the files in folders, chosen uniformly."""
    places = [PROJECT / folder for folder in folders]
    paths = (path for place in places for path in (place, *place.rglob("*.py")))
    files = sorted({str(path.relative_to(PROJECT)) for path in paths if path.is_file()})
    known = [(file, one) for file in files for one in mutations((PROJECT / file).read_bytes())]
    return random.Random(seed).sample(known, min(count, len(known)))


def mutant_of(file: str, mutation: Mutation, coverage: Coverage) -> Mutant:
    source = (PROJECT / file).read_bytes()
    return Mutant(
        file=file,
        source=source,
        changed=mutation.apply(source),
        tests=tuple(coverage.tests_of(file, mutation.lines)),
        is_run_at_import=coverage.is_run_at_import(file, mutation.lines),
    )


def results_of(
    chosen: Sequence[tuple[str, Mutation]], coverage: Coverage, jobs: int
) -> list[Result]:
    """What came of mutations, in their order."""
    mutants = [mutant_of(file, mutation, coverage) for file, mutation in chosen]
    covered = [mutant for mutant in mutants if mutant.tests]
    outcomes = iter(run(covered, TESTS, jobs, lambda number: _progress(number, len(covered))))
    return [
        _result(mutant, mutation, next(outcomes) if mutant.tests else None)
        for mutant, (_, mutation) in zip(mutants, chosen, strict=True)
    ]


def _result(mutant: Mutant, mutation: Mutation, outcome: Outcome | None) -> Result:
    word = NOT_COVERED if outcome is None else NOTICED if outcome.failed else SURVIVED
    return Result(
        file=mutant.file,
        line=mutant.source[: mutation.start].count(b"\n") + 1,
        change=mutation.describe(mutant.source),
        outcome=word,
        tests=len(mutant.tests),
        noticed_by=outcome.test if outcome else "",
    )


def _progress(number: int, of: int) -> None:
    print(f"\r{number} of {of}", end="", file=sys.stderr, flush=True)


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


def print_engines(results: Sequence[Result], engines: Coverage) -> None:
    """How many of the lines that no unit test covers engine tests run, where that was measured."""
    lines = {(one.file, one.line) for one in results if one.outcome == NOT_COVERED}
    if engines.seconds:
        run = sum(bool(engines.tests_of(file, range(line, line + 1))) for file, line in lines)
        print(f"of {len(lines)} lines not covered, engine tests run {run}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=["builder"], metavar="PATH")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--engines", nargs="+", type=Path, default=[], metavar="FILE")
    options = parser.parse_args()
    _enter_namespace()
    if PROJECT not in Path(builder.__file__).parents:
        parser.error(f"builder is imported from {builder.__file__}: set PYTHONPATH to {PROJECT}")
    engines = coverage_of_engines(measured=options.engines)
    coverage = coverage_of_units()
    chosen = sample(options.only, options.count, options.seed)
    results = results_of(chosen, coverage, options.jobs)
    print(file=sys.stderr)
    print_results(results)
    print_engines(results, engines)
    if options.json:
        options.json.write_text(json.dumps([vars_of(one) for one in results], indent=1))
    proof = [one for one in results if one.file.startswith(tuple(f"{name}/" for name in PROOF))]
    return 0 if rate(results) >= REACH and (not proof or rate(proof) >= REACH_OF_PROOF) else 1


def _enter_namespace() -> None:
    """Run this program again in a PID namespace, if root runs it outside of one."""
    if os.geteuid() == 0 and _ALONE not in os.environ:
        words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable]
        os.environ[_ALONE] = "1"
        os.execvp(words[0], [*words, *sys.argv])


def vars_of(result: Result) -> dict[str, object]:
    return {name: getattr(result, name) for name in result.__slots__}


if __name__ == "__main__":
    sys.exit(main())
