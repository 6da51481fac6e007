"""`build-images plan` on the shipped matrix, against importing hpccm alone.

The first plan, of the default selection, remembers nothing; one that is made again finds what an
earlier one of the same files kept, for the default selection and for all of the matrix. Python's
own caches of compiled modules are warm.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import environment, interleaved, processor_seconds, report, seconds

IMPORT = "python -c 'import hpccm'"
MORE = {
    "plan --all, again": "",
    "plan, first": "   (reach: under 3)",
    "plan --all, first": "",
}
PROJECT = Path(__file__).resolve().parents[1]


def run(home: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, *arguments],
        cwd=PROJECT,
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment(home),
    )


def plan(home: Path, *more: str) -> None:
    run(home, "-m", "builder", "plan", *more)


def first(*more: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        plan(Path(name), *more)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        plan(home)
        plan(home, "--all")
        contenders = {
            "plan, again": lambda: plan(home),
            "plan --all, again": lambda: plan(home, "--all"),
            "plan, first": first,
            "plan --all, first": lambda: first("--all"),
            IMPORT: lambda: run(home, "-c", "import hpccm"),
        }
        for what, measure in {"wall": seconds, "processor": processor_seconds}.items():
            print(f"{what} time")
            times = interleaved(contenders, repeats=15, measure=measure)
            report(times, ours="plan, again", against=IMPORT, reach="under 3")
            for ours, reach in MORE.items():
                ratio = statistics.median(times[ours]) / statistics.median(times[IMPORT])
                print(f"  {ours} / {IMPORT}: {ratio:.2f}{reach}")


if __name__ == "__main__":
    main()
