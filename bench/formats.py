"""One image in three formats, against its OCI image alone: wall time, and where it goes.

Every build step is run again each time, on a base that is there. Verification is left out of
both. The image is `hpc-base` for this machine's own architecture; its packages come from the
mirror. The number of repeats can be given.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import interleaved, report

PROJECT = Path(__file__).resolve().parents[1]
IMAGE = f"hpc-base-1.0-debian13-openmpi5.0-{platform.machine()}"


def build(out: Path, *options: str) -> None:
    command = [sys.executable, "-m", "builder", "--image", IMAGE, "--output", str(out)]
    subprocess.run(
        [*command, "--no-cache", "--no-verify", "--quiet", *options],
        cwd=PROJECT,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def main() -> None:
    durations: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=PROJECT) as name:
        out = Path(name)

        def three() -> None:
            build(out)
            manifest = json.loads((out / IMAGE / "manifest.json").read_text())
            for step, seconds in manifest["durations_s"].items():
                durations.setdefault(step, []).append(seconds)

        build(out, "--format", "oci")  # so that the base is there, and no contender pays for it
        times = interleaved(
            {"three formats": three, "OCI image alone": lambda: build(out, "--format", "oci")},
            repeats=int(sys.argv[1]) if len(sys.argv) > 1 else 3,
        )
    report(times, ours="three formats", against="OCI image alone", reach="at most 2")
    print("  where the time of the three goes:")
    for step, found in durations.items():
        print(f"    {step:14} {statistics.median(found):7.1f} s")


if __name__ == "__main__":
    main()
