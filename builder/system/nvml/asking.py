"""A process of its own looks: a GPU that is lost may hold up whoever asks, or end it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from builder.model.errors import BuildImagesError
from builder.system.nvml.kernel import kernel_driver
from builder.system.nvml.values import LIBRARY, NO_ANSWER, NvmlFault, NvmlReading, reading_of
from builder.system.process import Completed, Processes

WATCHED_EVERY_S = 0.5
TIMEOUT_S = 30.0  # without the persistence daemon, each GPU takes seconds to wake up
_ABANDONED_S = 10.0  # in a call of the kernel that never returns, a process cannot be ended either
_PACKAGES = Path(__file__).resolve().parents[3]


def ask(
    processes: Processes, *, library: str = LIBRARY, timeout_s: float = TIMEOUT_S
) -> NvmlReading:
    """This host's driver and GPUs, as a process of its own reads them in `timeout_s` seconds.

    If none comes back, the value's fault is NO_ANSWER and says what happened.
    """
    answers: list[Completed | BuildImagesError] = []

    def look() -> None:
        try:
            answers.append(_looked(processes, library, timeout_s))
        except BuildImagesError as error:
            answers.append(error)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(timeout_s + _ABANDONED_S)
    if not answers:
        return _nothing(f"hangs, and cannot be ended: no answer within {timeout_s:.0f} s")
    done = answers[0]
    if isinstance(done, BuildImagesError):
        raise done
    if done.timed_out:
        return _nothing(f"no answer within {timeout_s:.0f} s")
    try:
        return reading_of(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:]
        end = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        return _nothing(": ".join([f"whoever asked ended with {end}", *last]))


def watcher(library: str = LIBRARY) -> tuple[str, ...]:
    """The command line of a process that prints what GPUs do, again and again."""
    begin = (
        f"import sys; sys.path = {[str(_PACKAGES), *sys.path]!r}; "
        "from builder.system.nvml.watching import main; main()"
    )
    return (sys.executable, "-I", "-B", "-c", begin, library)


def _looked(processes: Processes, library: str, timeout_s: float) -> Completed:
    """From /, so that no folder of this name is taken for the package."""
    words = [sys.executable, "-m", "builder.system.nvml.reading", library]
    environment = {"PYTHONPATH": str(_PACKAGES), "PYTHONDONTWRITEBYTECODE": "1"}
    return processes.capture(
        words, cwd=Path("/"), env=environment, check=False, timeout_s=timeout_s
    )


def _nothing(text: str) -> NvmlReading:
    fault = NvmlFault(call=LIBRARY, number=-1, name=NO_ANSWER, text=text)
    return NvmlReading(kernel_driver=kernel_driver(), fault=fault)
