"""What a run takes of the whole machine: its cores and memory by /proc, its GPUs by measure.gpus.

/proc and not psutil, which has no wheel for ppc64le: four numbers are two small files.
https://docs.kernel.org/filesystems/proc.html
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from builder.model.errors import BuildImagesError, StepFailed
from builder.system import nvml
from builder.system.process import Processes
from builder.verify.measure.measurement import GpuUse, Sample, Use

INTERVAL_S = 0.5
PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuTimes:
    """Clock ticks since the machine was started, of all cores together."""

    busy: int
    all: int

    def share_since(self, before: CpuTimes) -> float:
        """The share of the time that cores were busy, 0 to 1."""
        passed = self.all - before.all
        return min(1.0, max(0.0, (self.busy - before.busy) / passed)) if passed > 0 else 0.0


def cpu_times(proc: Path = PROC) -> CpuTimes:
    """The first line of /proc/stat. Waiting for disks is idle; a guest's time is in the user's."""
    fields = (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, idle, waiting, *rest = map(int, fields)
    busy = user + nice + system + sum(rest)  # interrupts, and what a hypervisor took
    return CpuTimes(busy=busy, all=busy + idle + waiting)


def busy_share(seconds: float = 1.0, proc: Path = PROC) -> float:
    """The share of some time in which the cores are busy, 0 to 1."""
    before = cpu_times(proc)
    time.sleep(seconds)
    return cpu_times(proc).share_since(before)


def memory_in_use(proc: Path = PROC) -> int:
    """Bytes that programs could not have, by /proc/meminfo."""
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    kibibytes = {words[0]: int(words[1]) for words in lines if len(words) > 1}
    return (kibibytes["MemTotal:"] - kibibytes["MemAvailable:"]) * 1024


class Sampler:
    """Looks at the machine at intervals while a run goes on: `with sampler: …`, then `use`.

    Whoever makes samplers enters their `gpus` before the first run and leaves it after the last.
    """

    def __init__(
        self, *, gpus: Gpus | None = None, interval_s: float = INTERVAL_S, proc: Path = PROC
    ) -> None:
        self.gpus = gpus or Gpus()
        self._interval_s, self._proc = interval_s, proc
        self._samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._began = self._seconds = 0.0
        self._first = self._last = CpuTimes(busy=0, all=0)

    def __enter__(self) -> Sampler:
        self._first = cpu_times(self._proc)
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        self._seconds = time.monotonic() - self._began
        self._last = cpu_times(self._proc)
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        before, over = self._first, False
        while not over:
            over = self._over.wait(self._interval_s)
            now = cpu_times(self._proc)
            self._samples.append(
                Sample(
                    at_s=round(time.monotonic() - self._began, 2),
                    cpu=round(now.share_since(before), 4),
                    memory_bytes=memory_in_use(self._proc),
                    gpus=self.gpus.look(),
                )
            )
            before = now

    @property
    def use(self) -> Use:
        """What the run took; the mean of the cores is exact, whatever the interval."""
        samples = tuple(self._samples)
        return Use(
            seconds=round(self._seconds, 3),
            cpu=round(self._last.share_since(self._first), 4),
            memory_bytes=max((one.memory_bytes for one in samples), default=0),
            gpus=use_of_gpus([one.gpus for one in samples]),
            no_gpus=self.gpus.problem,
            samples=samples,
        )


def use_of_gpus(looks: Sequence[Sequence[GpuUse]]) -> tuple[GpuUse, ...]:
    """For each GPU the mean share of the time, and the most memory and power."""
    by_index: dict[int, list[GpuUse]] = {}
    for one in (gpu for look in looks for gpu in look):
        by_index.setdefault(one.index, []).append(one)
    return tuple(_summed(index, some) for index, some in sorted(by_index.items()))


def _summed(index: int, some: Sequence[GpuUse]) -> GpuUse:
    busy = [one.busy for one in some if one.busy is not None]
    memory = [one.memory_bytes for one in some if one.memory_bytes is not None]
    power = [one.power_w for one in some if one.power_w is not None]
    return GpuUse(
        index=index,
        busy=round(statistics.fmean(busy), 4) if busy else None,
        memory_bytes=max(memory, default=None),
        power_w=max(power, default=None),
    )


BEGIN_S = 30.0  # without the persistence daemon, each GPU takes seconds to wake up
SILENCE_S = 10.0
_FRESH_S = 2 * nvml.WATCHED_EVERY_S  # what is older belongs to a sample before
_END_S = 3.0  # a process in a call of the kernel that never returns cannot be ended


class Gpus:
    """Of a machine that has none to be sampled."""

    problem = ""

    def __enter__(self) -> Gpus:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        """Nothing is to be ended."""

    def look(self) -> tuple[GpuUse, ...]:
        """What each GPU does now; nothing where that is not known."""
        return ()


class Watched(Gpus):
    """Those that a process asks within `with gpus: …`; the programs run after it has begun."""

    def __init__(
        self,
        processes: Processes,
        *,
        library: str = nvml.LIBRARY,
        begin_s: float = BEGIN_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._processes, self._library = processes, library
        self._begin_s, self._silence_s = begin_s, silence_s
        self._heard, self._over = threading.Event(), threading.Event()
        self._latest: tuple[float, tuple[GpuUse, ...]] = (0.0, ())
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        if not self._heard.wait(self._begin_s):
            self._fail(f"no answer within {self._begin_s:.0f} s")
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(_END_S)

    def look(self) -> tuple[GpuUse, ...]:
        """What each GPU did a moment ago; nothing once there was a problem."""
        at, uses = self._latest
        age = time.monotonic() - at
        if age > self._silence_s:
            self._fail(f"no answer for {self._silence_s:.0f} s")
        return uses if age <= _FRESH_S and not self.problem else ()

    def _fail(self, problem: str) -> None:
        """The first problem is the one that counts."""
        self.problem = self.problem or problem

    def _listen(self) -> None:
        try:
            with self._processes.reading_from(nvml.watcher(self._library)) as lines:
                self._hear(lines)
        except _Over:
            return
        except StepFailed as error:
            ended = error.message.rpartition(": ")[2]
            self._fail(error.tail[-1] if error.tail else f"whoever asks them: {ended}")
        except (BuildImagesError, ValueError, TypeError) as error:
            self._fail(str(error))
        else:
            self._fail("whoever asks them went away")
        finally:
            self._heard.set()

    def _hear(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._latest = time.monotonic(), tuple(GpuUse(**one) for one in json.loads(line))
            self._heard.set()
            if self._over.is_set() or self.problem:
                raise _Over


class _Over(Exception):
    """Nobody asks any more."""


def gpu_look(
    processes: Processes, *, library: str = nvml.LIBRARY, proc: Path = Path("/proc")
) -> Gpus:
    """Return how GPUs are to be sampled on this machine."""
    return Watched(processes, library=library) if nvml.kernel_driver(proc) else Gpus()
