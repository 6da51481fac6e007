"""Commands that are killed at their n-th step: a server that forks one for each, for `kills`.

A step is a request that may change something or a change of the file system, of which CPython tells
audit hooks (https://docs.python.org/3/library/audit_events.html), or a write to a file, of which it
tells profilers: a file may be left open and empty, or with its first pieces alone. SIGKILL comes
before the step is taken, in whatever thread. The program itself knows nothing of it. A request that
only reads is no step: before it all is as it is before the next that does not.

Reads a JSON object a line, {"argv": [...], "at": 7, "said": FILE}; `at` is 0 for no kill. Answers
with {"status": ..., "steps": ...}: a negative status is a signal's.
"""

from __future__ import annotations

import io
import json
import os
import posix
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import Any

from builder.__main__ import main as build_images
from builder.distribute.bundle import archive
from builder.distribute.publish import proof, publisher
from builder.distribute.pull import images

CHANGES = frozenset(
    [
        *("os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "os.symlink", "os.chmod"),
        *("os.truncate", "os.utime", "shutil.rmtree"),
    ]
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_WRITERS = frozenset(["write", "writelines", "truncate"])
_FILES = (io.FileIO, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
LOADED = (archive, images, publisher, proof)  # each fork has them


class Steps:
    """Counts steps, and ends this process at one."""

    def __init__(self, at: int) -> None:
        self.at, self.number = at, 0
        self._writes: dict[object, int] = {}
        self._lock = threading.RLock()

    def hook(self, event: str, given: tuple[Any, ...]) -> None:
        """An audit hook."""
        changes = {"open": _writes, "http.client.send": _sends}.get(event)
        if event in CHANGES or (changes and changes(given)):
            self._take()

    def profile(self, _frame: FrameType, event: str, called: Any) -> None:
        """What is told of each call, in each thread: the 1st, 2nd, 4th, ... write to a file counts.

        One that is half written looks the same after the next piece.
        """
        if event == "c_call" and called.__name__ in _WRITERS and _is_file(called.__self__):
            number = self._writes.get(called.__self__, 0) + 1
            self._writes[called.__self__] = number
            if called.__self__ is posix or number & (number - 1) == 0:
                self._take()

    def _take(self) -> None:
        with self._lock:
            self.number += 1
            if self.number == self.at:
                os.kill(os.getpid(), signal.SIGKILL)


def _is_file(one: object) -> bool:
    return one is posix or isinstance(one, _FILES)


def _sends(given: tuple[Any, ...]) -> bool:
    return not bytes(given[1][:5]).startswith((b"GET ", b"HEAD "))


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
    if "--to" not in argv:  # the files of a registry are written by the registry
        threading.setprofile(steps.profile)
        sys.setprofile(steps.profile)
    status = 1
    try:
        status = build_images(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.setprofile(None)
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
