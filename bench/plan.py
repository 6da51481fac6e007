"""`build-images plan` on the shipped matrix, against importing hpccm alone.

Python's own caches of compiled modules are warm.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from timing import environment, interleaved, processor_seconds, report, seconds

IMPORT = "python -c 'import hpccm'"
PROJECT = Path(__file__).resolve().parents[1]


def run(home: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, *arguments],
        cwd=PROJECT,
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment(home),
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        contenders = {
            "plan": lambda: run(home, "-m", "builder", "plan"),
            IMPORT: lambda: run(home, "-c", "import hpccm"),
        }
        for what, measure in {"wall": seconds, "processor": processor_seconds}.items():
            print(f"{what} time")
            times = interleaved(contenders, repeats=15, measure=measure)
            report(times, ours="plan", against=IMPORT, reach="under 3")


if __name__ == "__main__":
    main()
