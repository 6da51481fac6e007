"""Commands that are killed at their n-th step: a server that forks one for each, for `kills`.

A step is a request, or a change of the file system: what CPython tells audit hooks of
(https://docs.python.org/3/library/audit_events.html). SIGKILL comes before it is taken, in whatever
thread. The program itself knows nothing of it.

Reads a JSON object a line, {"argv": [...], "at": 7, "said": FILE}; `at` is 0 for no kill. Answers
with {"status": ..., "steps": ...}: a negative status is a signal's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

from builder.cli import main as build_images
from builder.cli import publishing, pulling  # so that each fork has them

CHANGES = frozenset(
    [
        *("os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "os.symlink", "os.chmod"),
        *("os.truncate", "os.utime", "shutil.rmtree", "http.client.send"),
    ]
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
LOADED = (publishing, pulling)


class Steps:
    """Counts steps, and ends this process at one."""

    def __init__(self, at: int) -> None:
        self.at, self.number = at, 0
        self._lock = threading.RLock()

    def hook(self, event: str, given: tuple[Any, ...]) -> None:
        """An audit hook."""
        if event in CHANGES or (event == "open" and _writes(given)):
            with self._lock:
                self.number += 1
                if self.number == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)


def _writes(given: tuple[Any, ...]) -> bool:
    flags = given[2] if len(given) > 2 else 0
    return isinstance(flags, int) and bool(flags & _WRITES)


def run(argv: list[str], at: int, said: str, answer: int) -> None:
    """One command, in a process of its own, which ends with it."""
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    steps = Steps(at)
    sys.addaudithook(steps.hook)
    status = 1
    try:
        status = build_images(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(answer, str(steps.number).encode())
        os._exit(status)


def main() -> None:
    """Serve until standard input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            run(asked["argv"], asked["at"], asked["said"], write)
        os.close(write)
        with os.fdopen(read) as answer:
            steps = answer.read()
        _, status = os.waitpid(child, 0)
        found = {"status": os.waitstatus_to_exitcode(status), "steps": int(steps or 0)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
