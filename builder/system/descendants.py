"""Find, describe and end a process together with everything that it started, through /proc.

A process that forks twice, or that creates its own session, is no longer a descendant of the
command once its parent has ended. `main` runs one command and adopts such orphans as init does, so
all processes that the command ever started are found and ended. `main` runs as the caller even if
the command runs as another user, so that it may end them.

usage: python -c 'from builder.system.descendants import main; main()' USER COMMAND [ARGUMENT...]

USER is a name of passwd(5), or `-` for the caller. The exit status is the command's; if a signal
ended the command, the same signal ends `main`. Only the standard library is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import NoReturn

_KILLED_S = 5.0  # for killed processes to end; the kernel may still write to a slow disk
_SHOWN = 5
_LONGEST = 120  # characters of a command line
# States of proc(5) that say more than where a process sleeps.
_STATES = {"R": "running", "T": "stopped", "t": "stopped by a tracer"}
_EMULATORS = "qemu-"
_SET_CHILD_SUBREAPER = 36  # prctl(2)
_NO_SUCH_PROGRAM = 127  # what a shell reports
_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TO_GROUPS = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)  # by terminals and batch systems


def end_tree(pid: int, *, grace_s: float) -> None:
    """End a process and all of its descendants: SIGTERM, then SIGKILL after `grace_s` seconds.

    The process itself is ended last: while it exists, its descendants can be found.
    """
    victims = [pid, *descendants(pid)]
    signal_all(victims, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(map(is_alive, victims)):
        time.sleep(0.05)
    end_all_below(pid, known=victims[1:])
    signal_all([pid], signal.SIGKILL)


def end_all_below(pid: int, *, known: Sequence[int] = ()) -> None:
    """End all descendants of a process with SIGKILL, including those started meanwhile."""
    deadline = time.monotonic() + _KILLED_S
    while time.monotonic() < deadline:
        alive = [one for one in dict.fromkeys([*known, *descendants(pid)]) if is_alive(one)]
        if not alive:
            return
        signal_all(alive, signal.SIGKILL)
        time.sleep(0.01)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; ignore those that have ended or belong to another user."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid`: by parent, or by session if they were re-parented."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 - faster
    session = [other for other in pids if _session_of(other) == pid]
    if not session and pid not in pids:  # it has ended, and left nothing: as nearly always
        return []
    children: dict[int, list[int]] = {}
    for other in pids:
        if fields := stat_fields(other):
            children.setdefault(int(fields[1]), []).append(other)
    below = dict.fromkeys(session)
    todo = [pid, *session]
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in below:
                below[child] = None
                todo.append(child)
    return [one for one in below if one != pid]


def with_children(pid: int) -> list[int]:
    """Return a process, its children and theirs, from the kernel's lists if it keeps them.

    Unlike `descendants`, it reads nothing of other processes, of which a machine may have many.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # noqa: PTH110 - no pathlib
        return [pid, *descendants(pid)]
    pids = [pid]
    for each in pids:  # which grows
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):  # noqa: PTH208 - no pathlib
                pids += map(int, text_of(f"/proc/{each}/task/{thread}/children").split())
    return pids


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    return stat_fields(pid)[:1] not in ([], ["Z"], ["X"])


def waiting_below(pid: int) -> tuple[str, ...]:
    """Return what the processes below `pid` wait for, a line each: `sleep 60 (hrtimer_nanosleep)`.

    Processes that wait for one of the others are left out. At most five are described.
    """
    return waiting([one for one in descendants(pid) if is_alive(one)])


def waiting(pids: Sequence[int]) -> tuple[str, ...]:
    """Return what these processes wait for; see `waiting_below`."""
    parents = {int(fields[1]) for one in pids if (fields := stat_fields(one))}
    lines = [_waiting_for(one) for one in pids if one not in parents]
    more = len(lines) - _SHOWN
    return (*lines[:_SHOWN], *([f"{more} more"] if more > 0 else []))


def _waiting_for(pid: int) -> str:
    """Return a command line, and the kernel function in which it sleeps: proc(5), `wchan`."""
    words = [word for word in _text(pid, "cmdline").split("\0") if word]
    if len(words) > 1 and os.path.basename(words[0]).startswith(_EMULATORS):  # noqa: PTH119
        words = words[1:]
    line = " ".join(words) or _text(pid, "comm").strip() or "a process"
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    line = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."
    state = _STATES.get("".join(stat_fields(pid)[:1])) or _text(pid, "wchan").strip()
    if state in {"", "0"}:
        number = "".join(_text(pid, "syscall").split()[:1])
        state = f"system call {number}" if number.isdecimal() else "waiting"
    return f"{line} ({state})"


def stat_fields(pid: int) -> list[str]:
    """Return the fields of a process's `stat` after its name, which may contain any character."""
    return _text(pid, "stat").rpartition(")")[2].split()


def _text(pid: int, name: str) -> str:
    return text_of(f"/proc/{pid}/{name}")


def text_of(file: str | os.PathLike[str]) -> str:
    """Return the text of a file, as in /proc; empty if it cannot be read."""
    try:
        with open(file, errors="replace") as stream:  # noqa: PTH123 - `main` starts without pathlib
            return stream.read()
    except OSError:
        return ""


def main() -> NoReturn:
    """Run the command in `sys.argv`; end all that it started when it ends."""
    user, command = sys.argv[1], sys.argv[2:]
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, True)
    # This process ends with the command, so signals to end are sent to all processes below it.
    # Unlike SIG_IGN, a handler is not inherited by the command.
    heeded = [number for number in _TO_GROUPS if signal.getsignal(number) is not signal.SIG_IGN]
    for request in (*_TO_END, *heeded):
        signal.signal(request, lambda *_: None)
    entry = None if user == "-" else pwd.getpwnam(user)
    try:
        child = subprocess.Popen(  # noqa: S603 - an argument list, of builder.system.process
            command,
            user=entry and entry.pw_uid,
            group=entry and entry.pw_gid,
            extra_groups=entry and [],
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NO_SUCH_PROGRAM)
    pid = status = 0
    while pid != child.pid:
        pid, status = os.wait()
    with contextlib.suppress(ChildProcessError):  # there are no more: all orphans come here
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
        end_all_below(os.getpid())
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # only the command may dump core
        if (number := os.WTERMSIG(status)) != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else _NO_SUCH_PROGRAM)
