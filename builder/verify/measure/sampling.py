"""The load by a run, or of the machine during it: cores and memory from /proc, GPUs from NVML.

psutil has no wheel for ppc64le, so the four numbers are read from two small files of /proc:
https://docs.kernel.org/filesystems/proc.html

One process (builder.system.nvml) queries the GPUs during all rounds. It is a separate process,
since a faulty GPU may end or block it; a new one for each sample would disturb the measurement.
After one error or timeout, GPUs are no longer sampled, and `problem` says why.
"""

from __future__ import annotations

import json
import math
import operator
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from builder.model.errors import BuildImagesError, StepFailed
from builder.model.measurement import GpuUse, Sample, Use
from builder.system import nvml
from builder.system.descendants import stat_fields
from builder.system.process import Processes

_INTERVAL_S = 0.5
_SHORTEST_S = 0.1  # between the first samples, for programs that end soon
_MOST_SAMPLES = 2000  # with more, each two become one
_ROUNDED_S = 0.01  # to which the times of samples are known
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


class Load(Protocol):
    """A load that can be sampled."""

    def look(self) -> tuple[CpuTimes, int]:
        """Return the processor time until now, and the bytes of memory in use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineLoad:
    """The load of the whole machine."""

    proc: Path = _PROC

    def look(self) -> tuple[CpuTimes, int]:
        return cpu_times(self.proc), memory_in_use(self.proc)


_PAGE, _TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
_TIMES, _PAGES = slice(11, 15), 21  # fields of stat(5) after the name: user, system, of children


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessLoad:
    """The load by processes, which `find` returns, with that by their children that have ended.

    Memory that processes share counts for each of them.
    """

    find: Callable[[], Sequence[int]]

    def look(self) -> tuple[CpuTimes, int]:
        stats = [fields for pid in self.find() if len(fields := stat_fields(pid)) > _PAGES]
        busy = sum(int(ticks) for fields in stats for ticks in fields[_TIMES])
        passed = int(time.monotonic() * _TICK * (os.cpu_count() or 1))
        return CpuTimes(busy=busy, all=passed), sum(int(each[_PAGES]) for each in stats) * _PAGE


class Sampler:
    """Samples a load and GPUs at intervals during a run: `with sampler: …`, then `use`."""

    def __init__(
        self, gpus: Gpus, *, interval_s: float = _INTERVAL_S, load: Load | None = None
    ) -> None:
        self._gpus, self._interval_s, self._load = gpus, interval_s, load or MachineLoad()
        self._samples = _Thinned()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Sampler:
        self._first = self._load.look()[0]
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._seconds = time.monotonic() - self._began
        self._last = self._load.look()[0]
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        before, over, at_s = self._first, False, 0.0
        while not over:
            over = self._over.wait(min(self._interval_s, max(_SHORTEST_S, at_s / 4)))
            now, memory_bytes = self._load.look()
            at_s = time.monotonic() - self._began
            sample = Sample(
                at_s=round(at_s, 2),  # _ROUNDED_S
                cpu=round(now.share_since(before), 4),
                memory_bytes=memory_bytes,
                gpus=self._gpus.look(),
            )
            self._samples.add(sample)
            before = now

    @property
    def use(self) -> Use:
        """The load during the run; the mean of the cores is exact, whatever the interval."""
        return use_of(
            self._samples.samples,
            seconds=self._seconds,
            cpu=self._last.share_since(self._first),
            no_gpus=self._gpus.problem,
        )


@dataclass(slots=True)
class _Thinned:
    """Samples of a run of any length: if there are many, several in a row become one."""

    retained: list[Sample] = field(default_factory=list)
    pending: list[Sample] = field(default_factory=list)
    each: int = 1

    def add(self, sample: Sample) -> None:
        self.pending.append(sample)
        if len(self.pending) == self.each:
            self.retained = self.samples
            self.pending = []
        if len(self.retained) == _MOST_SAMPLES:
            starts = (0.0, *(sample.at_s for sample in self.retained[1::2]))
            pairs = zip(self.retained[::2], self.retained[1::2], starts, strict=False)
            self.retained = [_joined(pair, since_s) for *pair, since_s in pairs]
            self.each *= 2

    @property
    def samples(self) -> list[Sample]:
        since_s = self.retained[-1].at_s if self.retained else 0.0
        return [*self.retained, *([_joined(self.pending, since_s)] if self.pending else [])]


def _joined(samples: Sequence[Sample], since_s: float) -> Sample:
    """Return samples in a row as one: the mean of the cores, the most memory."""
    shares = [sample.cpu for sample in samples]
    return Sample(
        at_s=samples[-1].at_s,
        cpu=_mean(zip(shares, _durations(samples, since_s), strict=True)),
        memory_bytes=max(sample.memory_bytes for sample in samples),
        gpus=use_of_gpus(samples, since_s),
    )


def _durations(samples: Sequence[Sample], since_s: float) -> list[float]:
    """Return the time that each sample stands for: since the sample before."""
    times = [since_s, *(sample.at_s for sample in samples)]
    return [max(_ROUNDED_S, after - before) for before, after in pairwise(times)]


def _mean(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the mean of values, each with its duration."""
    values, seconds = zip(*pairs, strict=True)
    return round(math.fsum(map(operator.mul, values, seconds)) / math.fsum(seconds), 4)


def use_of(samples: Sequence[Sample], *, seconds: float, cpu: float, no_gpus: str) -> Use:
    """Return the use by a run of which time and share of the cores are known."""
    return Use(
        seconds=round(seconds, 3),
        cpu=round(cpu, 4),
        memory_bytes=max((sample.memory_bytes for sample in samples), default=0),
        gpus=use_of_gpus(samples),
        no_gpus=no_gpus,
        samples=tuple(samples),
    )


def use_of_gpus(samples: Sequence[Sample], since_s: float = 0.0) -> tuple[GpuUse, ...]:
    """Return the mean utilization of each GPU over the time, and its most memory and power."""
    by_index: dict[int, list[tuple[GpuUse, float]]] = {}
    for sample, seconds in zip(samples, _durations(samples, since_s), strict=True):
        for gpu in sample.gpus:
            by_index.setdefault(gpu.index, []).append((gpu, seconds))
    uses = []
    for index, gpus in sorted(by_index.items()):
        busy = [(gpu.busy, seconds) for gpu, seconds in gpus if gpu.busy is not None]
        memory = [gpu.memory_bytes for gpu, _ in gpus if gpu.memory_bytes is not None]
        power = [gpu.power_w for gpu, _ in gpus if gpu.power_w is not None]
        use = GpuUse(
            index=index,
            busy=_mean(busy) if busy else None,
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


def gpu_sampler(processes: Processes, *, proc: Path = _PROC) -> Gpus:
    """Return the sampler for this machine's GPUs."""
    return Gpus(processes, library=nvml.LIBRARY if nvml.kernel_driver(proc) else "")
