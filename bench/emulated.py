"""Whole images for ppc64le, built with native tools, under plain QEMU, and for x86_64.

Every build step is run again each time, on a base that is there; what counts is the time of all
stages, without packing. Arguments: the recipe (default hpc-base), the repeats (3), those of
plain QEMU (as many; 0 leaves it out: `mpi-source` takes hours).
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import print_ratio, report

PROJECT = Path(__file__).resolve().parents[1]
CONTENDERS = {
    "native tools": ("--arch", "ppc64le"),
    "x86_64": ("--arch", "x86_64"),
    "plain QEMU": ("--arch", "ppc64le", "--no-native-tools"),
}


def build(recipe: str, out: Path, *options: str) -> float:
    """Build one image; the seconds that its stages took, as its manifest has them."""
    command = [sys.executable, "-m", "builder", "--recipe", recipe, "--base", "debian13"]
    command += ["--mpi", "openmpi", "--cuda", "none", "--format", "oci", "--output", str(out)]
    subprocess.run(
        [*command, "--no-cache", "--no-verify", "--quiet", *options],
        cwd=PROJECT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    manifest = next(out.glob("*/manifest.json"))
    took = json.loads(manifest.read_text())["durations_s"]
    manifest.unlink()
    return float(took["stages"] + took["build"])


def main() -> None:
    if platform.machine() != "x86_64":
        sys.exit("native tools are for x86_64 machines")
    recipe, repeats, plain = [*sys.argv[1:], *["hpc-base", "3", ""][len(sys.argv) - 1 :]]
    rounds = {name: int(repeats) for name in CONTENDERS}
    rounds["plain QEMU"] = int(plain or repeats)
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS if rounds[name]}
    with tempfile.TemporaryDirectory(dir=PROJECT) as folder:
        for turn in range(max(rounds.values())):
            for name, found in times.items():
                if turn < rounds[name]:
                    found.append(build(recipe, Path(folder), *CONTENDERS[name]))
    print(f"{recipe} from its base:")
    report(times, ours="native tools", against="x86_64", reach="at most 1.5")
    print_ratio(times, "plain QEMU", "native tools", "at least 3")


if __name__ == "__main__":
    main()
