"""Planted defects by class and sound images that look odd: how many are caught, and accused.

Each defect has to be caught and named. Most are judged by what `verify` reads, without an engine;
those of the families `containers` and `checks` are verified in containers. At last come the limits
that docs/checks.md names: a limit that is caught is none any more.

usage: defects.py [formats] [manifests] [libraries] [ranks] [containers]     without a word: all

`containers` needs `hpc-base` of both architectures in out/, `ranks` this machine's Open MPI.
"""

from __future__ import annotations

import collections
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import defects_in_containers
import defects_in_formats
import defects_in_libraries
import defects_in_manifests
import defects_in_ranks
import limits
import sound_formats
from campaign import Case
from timing import machine

GROUPS = {
    "formats": (defects_in_formats.cases, sound_formats.cases),
    "manifests": (defects_in_manifests.cases, list),
    "libraries": (defects_in_libraries.cases, defects_in_libraries.sound_cases),
    "ranks": (defects_in_ranks.cases, defects_in_ranks.sound_cases),
}
CONTAINERS = "containers"


def wrong_with(case: Case, folder: Path) -> str:
    """What is wrong with the verdict on a case; empty if it is right."""
    text = "\n".join(case.faults(folder))
    if not case.named:
        return f"accused: {text}" if text else ""
    if not text:
        return "not caught"
    return "" if re.search(case.named, text) else f"caught, and not named {case.named}: {text}"


def tried(cases: Iterable[Case]) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """How many cases there are by family, and with how many verdicts something is wrong."""
    counts: collections.Counter[str] = collections.Counter()
    wrong: collections.Counter[str] = collections.Counter()
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="defects-") as name:
            problem = wrong_with(case, Path(name))
        counts[case.family] += 1
        wrong[case.family] += bool(problem)
        if problem:
            print(f"{case.family}, {case.name}: {problem[:2000]}", flush=True)
    return counts, wrong


def report(title: str, cases: Iterable[Case]) -> bool:
    """Try cases and print a table of them; whether something is wrong."""
    start = time.monotonic()
    counts, wrong = tried(cases)
    print(title)
    for family, count in counts.items():
        print(f"  {family:12} {count - wrong[family]:4} of {count:4}")
    total = counts.total()
    took = time.monotonic() - start
    print(f"  {'all':12} {total - wrong.total():4} of {total:4}   {took:.0f} s", flush=True)
    return bool(wrong.total())


def main(arguments: Sequence[str]) -> int:
    chosen = list(arguments) or [*GROUPS, CONTAINERS]
    if unknown := sorted({*chosen} - {*GROUPS, CONTAINERS}):
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join([*GROUPS, CONTAINERS])}")
    print(machine())
    groups = [GROUPS[name] for name in chosen if name in GROUPS]
    defects = [case for planted, _ in groups for case in planted()]
    sound = [case for _, unspoiled in groups for case in unspoiled()]
    if CONTAINERS not in chosen:
        return _reported(defects, sound)
    with defects_in_containers.maker_here() as maker:
        defects += defects_in_containers.cases(maker)
        sound += defects_in_containers.sound_cases(maker)
        return _reported(defects, sound)


def _reported(defects: Sequence[Case], sound: Sequence[Case]) -> int:
    wrong = [
        report("defects caught and named  (reach: all)", defects),
        report("sound images not accused  (reach: all)", sound),
        report("limits that are still not caught", limits.cases()),
    ]
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
