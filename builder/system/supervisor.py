"""Runs one command and ends whatever it leaves: `builder.system.process` starts it for checks.

A process that forks twice, or that makes a session of its own, is no descendant of the command
any more once its parent is gone. This process adopts such orphans, as init would: so everything
that the command ever started stays below it, and is found and ended. It runs as the caller also
when the command runs as another user, so that it may.

usage: python -c 'from builder.system.supervisor import main; main()' USER COMMAND [ARGUMENT...]

USER is a name of passwd(5), or `-` for the caller. The exit status is the command's; a command
that a signal ended is followed by that signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import resource
import signal
import sys
from typing import NoReturn

from builder.system.descendants import end_all_below

_SET_CHILD_SUBREAPER = 36  # prctl(2)
_NO_SUCH_PROGRAM = 127  # what a shell reports
_REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> NoReturn:
    """Run the command that `sys.argv` holds, to its end and that of all that it started."""
    user, command = sys.argv[1], sys.argv[2:]
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Its end is that of the command: whoever asks for it asks all that run below, too.
    for number in _REQUESTS:
        signal.signal(number, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        _become(user, command)
    status = _status_of(child)
    end_all_below(os.getpid())
    _bury_orphans()
    _end_as(status)


def _become(user: str, command: list[str]) -> NoReturn:
    """The command itself, in the place of this process."""
    try:
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGHUP,
            signal.SIGPIPE,
            signal.SIGXFSZ,
        ):
            signal.signal(number, signal.SIG_DFL)
        if user != "-":
            entry = pwd.getpwnam(user)
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
        os.execvp(command[0], command)  # noqa: S606 - an argument list, of builder.system.process
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(_NO_SUCH_PROGRAM)


def _status_of(child: int) -> int:
    """Return how the command ended; orphans that end before it are buried, too."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def _bury_orphans() -> None:
    with contextlib.suppress(ChildProcessError):  # there are no more
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _end_as(status: int) -> NoReturn:
    sys.stdout.flush()
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core, if any, is the command's
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else _NO_SUCH_PROGRAM)
