"""Planning 10,000 cells; of 1,000, `spec` when nothing changed, and the memory of a plan.

All are whole processes: the start of Python and all imports are in the times. Processor time is
what a busy machine does not change. The project has recipes and base images that all differ
(bench/projects.py). Memory is the largest resident set.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from projects import SHIPPED, write_project
from timing import machine

LARGE, SMALL = {"recipes": 50, "bases": 50}, {"recipes": 25, "bases": 10}
REPEATS = 5
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """One process: wall and processor time in seconds, memory in bytes."""

    wall: float
    processor: float
    memory: int


def build_images(command: str, project: Path, home: Path, out: Path) -> Spent:
    """Run a command over the whole matrix."""
    words = [sys.executable, "-m", "builder", command, "--all", f"--project={project}"]
    words += [f"--output={out}"] if command == "spec" else []
    words += ["--dry-run"] if command == "build" else []
    environment = {**os.environ, "BUILD_IMAGES_HOME": str(home)}
    start = time.perf_counter()
    child = subprocess.Popen(words, env=environment, cwd=SHIPPED, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    wall = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return Spent(wall=wall, processor=used.ru_utime + used.ru_stime, memory=used.ru_maxrss * 1024)


def show(name: str, runs: list[Spent], reach: str) -> None:
    walls = [one.wall for one in runs]
    processor = statistics.median(one.processor for one in runs)
    print(
        f"  {name:42} median {statistics.median(walls):8.3f} s"
        f"   ({min(walls):.3f} to {max(walls):.3f}, {len(walls)} runs),"
        f" {processor:.3f} s of processor time,"
        f" {max(one.memory for one in runs) / _MIB:.0f} MiB   (reach: {reach})"
    )


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large, small, out = folder / "large", folder / "small", folder / "out"
        assert write_project(large, **LARGE) == 10_000
        assert write_project(small, **SMALL) == 1_000
        build_images("spec", small, folder / "home", out)
        plans, specs, thousand, compiled = [], [], [], []
        for number in range(REPEATS):  # a home of its own: nothing is remembered
            plans.append(build_images("plan", large, folder / f"home{number}", out))
            specs.append(build_images("spec", small, folder / "home", out))
            thousand.append(build_images("plan", small, folder / f"home{number}", out))
            compiled.append(build_images("build", small, folder / f"home{number}", out))
    show("plan, 10,000 cells", plans, "under 3 s and 300 MB")
    show("spec, 1,000 cells, nothing changed", specs, "under 0.5 s")
    show("plan, 1,000 cells", thousand, "under 150 MB")
    show("--dry-run, 1,000 cells: all compiled", compiled, "under 150 MB")


if __name__ == "__main__":
    main()
