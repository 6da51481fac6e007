"""What verifying one image in all three formats costs beyond the run time of its programs.

The images are `hpc-base` for x86_64 and ppc64le, from out/, by turns. The run time of the programs
is that of the checks' scripts: what the evidence says of each, less what the same runner takes to
start `true` in the same container, five times measured before. All else is what verifying costs:
artifacts checked against their digests, three trees read, containers made, started and removed,
the environment, evidence. Processor time (user and system, of all that was started) is given
beside: on a busy machine it says more than the wall time.

usage: verify.py [REPEATS]
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import sys
import tempfile
from pathlib import Path

from command import build_images
from timing import interleaved, machine, print_medians

from builder.build.at_work import at_work
from builder.build.engines import Tools
from builder.model.manifest import MANIFEST
from builder.system.home import Home
from builder.system.process import Processes
from builder.verify.finished_images import OpenImage, opened
from builder.verify.runners import DEFAULTS, RUNNERS
from builder.verify.runners.protocol import Container

PROJECT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("x86_64", "ppc64le")
REACH_S = {True: 20, False: 60}  # native, emulated
STARTS = 5
OWN = {"formats-equal", "environment"}


def image_of(arch: str) -> Path | None:
    found = sorted((PROJECT / "out").glob(f"**/hpc-base-*-{arch}/{MANIFEST}"))
    return found[0].parent if found else None


def verify(folder: Path) -> None:
    status, output = build_images("verify", "--quiet", folder)
    if status:
        sys.exit(f"{folder.name} is not verified:\n{output}")


def starts(folder: Path) -> dict[str, float]:
    """By format, the seconds that a container takes to run a program that does nothing."""
    tools = Tools(processes=Processes(), home=Home.of_environment())
    with at_work(tools, PROJECT, lambda _text: None), opened(folder, tools) as image:
        return {name: _start(image, name, tools) for name in image.artifacts}


def _start(image: OpenImage, name: str, tools: Tools) -> float:
    with tempfile.TemporaryDirectory(dir=image.work) as scratch:
        Path(scratch).chmod(0o755)
        container = Container(artifact=image.artifacts[name].path, work=Path(scratch), tools=tools)
        with RUNNERS[DEFAULTS[name]].open(container) as runner:
            times = [runner.run(["true"], timeout_s=60).duration_s for _ in range(STARTS)]
    return statistics.median(times)


def programs_s(folder: Path, start_s: dict[str, float]) -> float:
    """The run time of the checks' programs in the last verification."""
    manifest = json.loads((folder / MANIFEST).read_text())
    times: list[float] = [
        max(0.0, one["duration_s"] - start_s[name])
        for name, outcomes in manifest["checks"].items()
        for one in outcomes
        if name in start_s and one["check"] not in OWN
    ]
    return sum(times)


def processor_s() -> float:
    """The processor time of this process and of all that it started and that has ended."""
    own, started = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + started.ru_utime + started.ru_stime


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    folders = {arch: folder for arch in ARCHITECTURES if (folder := image_of(arch))}
    if not folders:
        sys.exit("no hpc-base in out/: run build-images first")
    start_s = {arch: starts(folder) for arch, folder in folders.items()}
    programs: dict[str, list[float]] = {arch: [] for arch in folders}
    processor: dict[str, list[float]] = {arch: [] for arch in folders}

    def once(arch: str) -> None:
        before = processor_s()
        verify(folders[arch])
        processor[arch].append(processor_s() - before)
        programs[arch].append(programs_s(folders[arch], start_s[arch]))

    times = interleaved(
        {arch: lambda arch=arch: once(arch) for arch in folders},  # type: ignore[misc]
        repeats=repeats,
    )
    print(machine())
    print_medians({f"verify {arch}": found for arch, found in times.items()})
    print_medians({f"its programs, {arch}": found for arch, found in programs.items()})
    print_medians({f"processor time, {arch}": found for arch, found in processor.items()})
    print(f"  load: {', '.join(f'{one:.1f}' for one in os.getloadavg())}")
    for arch, found in times.items():
        beyond = statistics.median(
            whole - inner for whole, inner in zip(found, programs[arch], strict=True)
        )
        native = arch == platform.machine()
        how = "native" if native else "emulated"
        print(f"  beyond its programs, {arch}, {how}: {beyond:.1f} s  (reach: {REACH_S[native]} s)")


if __name__ == "__main__":
    main()
