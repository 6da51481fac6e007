"""The load of the whole machine during a run: cores and memory from /proc, GPUs from NVML.

psutil has no wheel for ppc64le, so the four numbers are read from two small files of /proc:
https://docs.kernel.org/filesystems/proc.html

One process (builder.system.nvml) queries the GPUs during all rounds. It is a separate process,
since a faulty GPU may end or block it; a new one for each sample would disturb the measurement.
After one error or timeout, GPUs are no longer sampled, and `problem` says why.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.model.errors import BuildImagesError, StepFailed
from builder.model.measurement import GpuUse, Sample, Use
from builder.system import nvml
from builder.system.process import Processes

_INTERVAL_S = 0.5
_PROC = Path("/proc")
_BEGIN_S = 30.0  # without the persistence daemon, each GPU takes seconds to wake up
_SILENCE_S = 10.0
_FRESH_S = 2 * nvml.WATCHED_EVERY_S  # older values belong to an earlier sample
_END_S = 3.0  # a process in a system call that never returns cannot be ended


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuTimes:
    """Clock ticks since the machine was started, summed over all cores."""

    busy: int
    all: int

    def share_since(self, before: CpuTimes) -> float:
        """Return the share of the time in which cores were busy, 0 to 1."""
        passed = self.all - before.all
        return min(1.0, max(0.0, (self.busy - before.busy) / passed)) if passed > 0 else 0.0


def cpu_times(proc: Path) -> CpuTimes:
    """Read /proc/stat. Waiting for disks counts as idle; user time includes that of guests."""
    fields = (proc / "stat").read_text().split()[1:9]
    user, nice, system, idle, waiting, *rest = map(int, fields)
    busy = user + nice + system + sum(rest)  # rest: interrupts, and time taken by a hypervisor
    return CpuTimes(busy=busy, all=busy + idle + waiting)


def busy_share(proc: Path = _PROC) -> float:
    """Return the share of the next second in which cores are busy, 0 to 1."""
    before = cpu_times(proc)
    time.sleep(1.0)
    return cpu_times(proc).share_since(before)


def memory_in_use(proc: Path) -> int:
    """Return the bytes of memory that are not available to programs, from /proc/meminfo."""
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    kibibytes = {words[0]: int(words[1]) for words in lines}
    return (kibibytes["MemTotal:"] - kibibytes["MemAvailable:"]) * 1024


class Sampler:
    """Samples the machine at intervals during a run: `with sampler: …`, then `use`."""

    def __init__(self, gpus: Gpus, *, interval_s: float = _INTERVAL_S, proc: Path = _PROC) -> None:
        self._gpus, self._interval_s, self._proc = gpus, interval_s, proc
        self._samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Sampler:
        self._first = cpu_times(self._proc)
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._seconds = time.monotonic() - self._began
        self._last = cpu_times(self._proc)
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        before, over = self._first, False
        while not over:
            over = self._over.wait(self._interval_s)
            now = cpu_times(self._proc)
            sample = Sample(
                at_s=round(time.monotonic() - self._began, 2),
                cpu=round(now.share_since(before), 4),
                memory_bytes=memory_in_use(self._proc),
                gpus=self._gpus.look(),
            )
            self._samples.append(sample)
            before = now

    @property
    def use(self) -> Use:
        """The load during the run; the mean of the cores is exact, whatever the interval."""
        return Use(
            seconds=round(self._seconds, 3),
            cpu=round(self._last.share_since(self._first), 4),
            memory_bytes=max(sample.memory_bytes for sample in self._samples),
            gpus=use_of_gpus([sample.gpus for sample in self._samples]),
            no_gpus=self._gpus.problem,
            samples=tuple(self._samples),
        )


def use_of_gpus(looks: Sequence[Sequence[GpuUse]]) -> tuple[GpuUse, ...]:
    """Return the mean utilization of each GPU, and its highest memory use and power."""
    by_index: dict[int, list[GpuUse]] = {}
    for gpu in (gpu for look in looks for gpu in look):
        by_index.setdefault(gpu.index, []).append(gpu)
    uses = []
    for index, gpus in sorted(by_index.items()):
        busy = [gpu.busy for gpu in gpus if gpu.busy is not None]
        memory = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
        power = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
        use = GpuUse(
            index=index,
            busy=round(statistics.fmean(busy), 4) if busy else None,
            memory_bytes=max(memory, default=None),
            power_w=max(power, default=None),
        )
        uses.append(use)
    return tuple(uses)


class Gpus:
    """GPUs that a process samples within `with gpus: …`, which waits for the first sample.

    Without NVML's `library` there are none. After a `problem`, no GPU is sampled any more.
    """

    def __init__(
        self,
        processes: Processes,
        *,
        library: str = nvml.LIBRARY,
        begin_s: float = _BEGIN_S,
        silence_s: float = _SILENCE_S,
    ) -> None:
        self._processes, self._library = processes, library
        self._begin_s, self._silence_s = begin_s, silence_s
        self._heard, self._over = threading.Event(), threading.Event()
        self._latest: tuple[float, tuple[GpuUse, ...]] = (time.monotonic(), ())
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self.problem = ""

    def __enter__(self) -> Gpus:
        self._thread.start()
        if not self._heard.wait(self._begin_s):
            self._fail(f"no answer within {self._begin_s:.0f} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_END_S)

    def look(self) -> tuple[GpuUse, ...]:
        """Return the latest sample of each GPU; empty after a problem."""
        if not self._library:
            return ()
        at, uses = self._latest
        age = time.monotonic() - at
        if age > self._silence_s:
            self._fail(f"no answer for {self._silence_s:.0f} s")
        return uses if age <= _FRESH_S and not self.problem else ()

    def _fail(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _listen(self) -> None:
        try:
            if not self._library:
                return
            with self._processes.reading_from(nvml.watcher(self._library)) as lines:
                self._hear(lines)
        except _Over:
            return
        except StepFailed as error:
            ended = error.message.rpartition(": ")[2]
            self._fail(error.tail[-1] if error.tail else f"the sampling process: {ended}")
        except (BuildImagesError, ValueError, TypeError) as error:
            self._fail(str(error))
        else:
            self._fail("the sampling process ended")
        finally:
            self._heard.set()

    def _hear(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._latest = time.monotonic(), tuple(GpuUse(**gpu) for gpu in json.loads(line))
            self._heard.set()
            if self._over.is_set() or self.problem:
                raise _Over


class _Over(Exception):
    """The measurement has ended."""


def gpu_look(processes: Processes, *, proc: Path = _PROC) -> Gpus:
    """Return the sampler for this machine's GPUs."""
    return Gpus(processes, library=nvml.LIBRARY if nvml.kernel_driver(proc) else "")
