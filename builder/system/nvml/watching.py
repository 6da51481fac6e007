"""A process that begins with the library once, and prints what GPUs do twice a second.

Each line is JSON: a list with an object for each GPU, of `index`, `busy` (the share of the time, 0
to 1), `memory_bytes` and `power_w`; null is what a GPU does not tell. With the first fault it ends,
and says on standard error which. It also ends when nobody reads it any more.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import time
from pathlib import Path

from builder.system.nvml.gpu import read_use
from builder.system.nvml.library import LIBRARY, Failed, Nvml

INTERVAL_S = 0.5
_HANGS_S = 40  # then whoever waits has given up; longer than a GPU takes to wake up
_BEGIN = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r}); "
    "from builder.system.nvml.watching import main; main()"
)


def watcher(library: str = LIBRARY) -> tuple[str, ...]:
    """The command line of that process."""
    return (sys.executable, "-I", "-B", "-c", _BEGIN, library)


def main() -> None:
    """Print until somebody ends it."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        _watch(sys.argv[1])
    except OSError as error:
        sys.exit(str(error))
    except Failed as failed:
        sys.exit(f"{failed.fault.call}: {failed.fault.name}")


def _watch(library: str) -> None:
    signal.alarm(_HANGS_S)  # ends this process, also within a call into the library
    nvml = Nvml(library)
    nvml.call("nvmlInit_v2")
    count = ctypes.c_uint()
    nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    gpus = [ctypes.c_void_p() for _ in range(count.value)]
    for index, gpu in enumerate(gpus):
        nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(gpu))
    while True:
        signal.alarm(_HANGS_S)
        uses = [{"index": index, **read_use(nvml, gpu)} for index, gpu in enumerate(gpus)]
        print(json.dumps(uses), flush=True)
        time.sleep(INTERVAL_S)
