"""A process that begins with the library once, and prints what GPUs do twice a second.

Each line is JSON: a list with an object for each GPU, of `index`, `busy` (the share of the time, 0
to 1), `memory_bytes` and `power_w`; null is what a GPU does not tell. With the first fault it ends,
and says on standard error which. It also ends when nobody reads it any more.
"""

from __future__ import annotations

import json
import signal
import sys
import time

from builder.system.nvml.asking import WATCHED_EVERY_S
from builder.system.nvml.gpu import read_use
from builder.system.nvml.library import Failed, call, load

_HANGS_S = 40  # then whoever waits has given up; longer than a GPU takes to wake up


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
    load(library)
    call("nvmlInit")
    gpus = [
        call("nvmlDeviceGetHandleByIndex", index) for index in range(call("nvmlDeviceGetCount"))
    ]
    while True:
        signal.alarm(_HANGS_S)
        uses = [{"index": index, **read_use(gpu)} for index, gpu in enumerate(gpus)]
        print(json.dumps(uses), flush=True)
        time.sleep(WATCHED_EVERY_S)
