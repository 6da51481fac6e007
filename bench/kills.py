"""SIGKILL at every step of what carries images, and the same command again, to its end.

    python bench/kills.py [--at-most 10] [--only 'load *' --only bundle]

A step is a request that may change something, a change of the file system or a write to a file
(`killed_at.py`). After each kill, what is at the output, under a tag or in the home is whole, or as
it was before; the same command again ends well, and what is there then is what a command makes that
nothing happened to, with nothing half-made beside it. `kill_cases.py` has the commands.

`--at-most 10` kills each command at ten steps. TMPDIR=/dev/shm spares the disk what a registry
syncs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path

from kill_cases import all_cases
from killing import kill
from timing import machine


def main() -> int:
    """Kill, and count; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--at-most", type=int, metavar="N", help="kills of each command")
    parser.add_argument("--only", action="append", metavar="GLOB", help="of the commands' names")
    given = parser.parse_args()
    print(machine())
    wrong = []
    with tempfile.TemporaryDirectory(prefix="kills-") as name, all_cases(Path(name)) as (run, some):
        for case in some:
            if not any(fnmatch(case.name, one) for one in given.only or ["*"]):
                continue
            start = time.monotonic()
            kills, found = kill(run, case, given.at_most)
            took = f"{time.monotonic() - start:.0f} s"
            print(f"{case.name}: {kills} kills, {len(found)} wrong, {took}", flush=True)
            print(*found, sep="\n", end="\n" if found else "", flush=True)
            wrong += found
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
