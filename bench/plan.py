"""`build-images plan` on the shipped matrix, against importing hpccm alone.

The first plan, of the default selection, remembers nothing; one that is made again finds what an
earlier one of the same files kept, for the default selection and for all of the matrix.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import interleaved, report

IMPORT = "python -c 'import hpccm'"
PROJECT = Path(__file__).resolve().parents[1]


def run(home: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, *arguments],
        cwd=PROJECT,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "BUILD_IMAGES_HOME": str(home)},
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
        times = interleaved(
            {
                "plan, again": lambda: plan(home),
                "plan --all, again": lambda: plan(home, "--all"),
                "plan, first": first,
                "plan --all, first": lambda: first("--all"),
                IMPORT: lambda: run(home, "-c", "import hpccm"),
            },
            repeats=9,
        )
    report(times, ours="plan, again", against=IMPORT, reach="under 3")
    for ours in ("plan --all, again", "plan, first", "plan --all, first"):
        ratio = statistics.median(times[ours]) / statistics.median(times[IMPORT])
        print(f"  {ours} / {IMPORT}: {ratio:.2f}")


if __name__ == "__main__":
    main()
