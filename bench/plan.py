"""`build-images plan` on the shipped matrix, against importing hpccm alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from timing import interleaved, report

PROJECT = Path(__file__).resolve().parents[1]


def run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    times = interleaved(
        {
            "build-images plan": lambda: run("-m", "builder", "plan", "--all"),
            "python -c 'import hpccm'": lambda: run("-c", "import hpccm"),
        },
        repeats=15,
    )
    report(times, ours="build-images plan", against="python -c 'import hpccm'", reach="under 3")


if __name__ == "__main__":
    main()
