"""What GPUs do while programs run, as one process of its own tells it for all rounds.

That process is builder.system.nvml_reader: a sick GPU may end or hold up who asks, and one who
begins anew for each sample would be seen in what is measured. After one fault or one silence no GPU
is sampled any more, and `problem` says why.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from builder.model.errors import BuildImagesError, StepFailed
from builder.system import nvml
from builder.system.process import Processes
from builder.verify.measure.values import GpuUse

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
