"""What the benchmarks share: contenders interleaved, repeated, given as medians and ratios."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from builder.build.engines import Tools
from builder.system.home import Home
from builder.system.process import Processes

_PROGRAMS = ("buildah", "docker", "apptainer", "ch-convert", "skopeo", "qemu-ppc64le")


def seconds(work: Callable[[], object]) -> float:
    """The wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def processor_seconds(work: Callable[[], object]) -> float:
    """The processor time of the programs that one call runs to their end.

    On a busy machine it says more than the wall time: what others take is not in it.
    """
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    measure: Callable[[Callable[[], object]], float] = seconds,
) -> dict[str, list[float]]:
    """The times of each contender, taken in turns, so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, work in contenders.items():
            times[name].append(measure(work))
    return times


def environment(home: Path) -> dict[str, str]:
    """What `build-images` is run with: a home of its own, and Python's compiled modules kept."""
    here = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**here, "BUILD_IMAGES_HOME": str(home)}


def machine() -> str:
    """What was measured on, and with which versions."""
    versions = [f"Python {platform.python_version()}", f"hpccm {version('hpccm')}"]
    tools = Tools(processes=Processes(), home=Home.of_environment())
    asked = {
        **{name: (name,) for name in _PROGRAMS},
        "docker-buildx": (str(tools.home.path / "tools/cli-plugins/docker-buildx"), "version"),
        "mksquashfs": ("mksquashfs", "-version"),
    }
    there = {name: words for name, words in asked.items() if tools.has(words[0])}
    versions += [f"{name} {tools.version(*words)}" for name, words in there.items()]
    host = f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"
    return f"machine: {host}\n  {', '.join(versions)}"


def report(times: Mapping[str, list[float]], *, ours: str, against: str, reach: str) -> None:
    """Print medians with their spread, and the ratio of two contenders."""
    print(machine())
    print_medians(times)
    print_ratio(times, ours, against, reach)


def print_medians(times: Mapping[str, list[float]]) -> None:
    """Print the median of each contender, with its spread."""
    for name, found in times.items():
        print(
            f"  {name:42} median {statistics.median(found):8.3f} s"
            f"   ({min(found):.3f} to {max(found):.3f}, {len(found)} runs)"
        )


def print_ratio(times: Mapping[str, list[float]], ours: str, against: str, reach: str) -> None:
    """Print the ratio of two contenders' medians; nothing if one of them did not run."""
    if times.get(ours) and times.get(against):
        ratio = statistics.median(times[ours]) / statistics.median(times[against])
        print(f"  {ours} / {against}: {ratio:.2f}   (reach: {reach})")
