"""A process with everything that it started: found in /proc, described, and ended together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_KILLED_S = 5.0  # how long what was killed may take to go: a kernel that writes to a slow disk
_SHOWN = 5
_LONGEST = 120  # characters of a command line
# Letters of proc(5) that say more than where a process sleeps.
_STATES = {"R": "running", "T": "stopped", "t": "stopped by a tracer"}
_EMULATORS = "qemu-"


def end_tree(pid: int, *, grace_s: float) -> None:
    """End a process and all of its descendants: SIGTERM, then SIGKILL after `grace_s` seconds.

    The process goes last: as long as it is there, it is known what is below it.
    """
    victims = [pid, *descendants(pid)]
    _signal_all(victims, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(is_alive(victim) for victim in victims):
        time.sleep(0.05)
    end_all_below(pid, known=victims[1:])
    _signal_all([pid], signal.SIGKILL)


def end_all_below(pid: int, *, known: Sequence[int] = ()) -> None:
    """End all descendants of a process with SIGKILL, and those that they start meanwhile."""
    deadline = time.monotonic() + _KILLED_S
    while time.monotonic() < deadline:
        left = [one for one in dict.fromkeys([*known, *descendants(pid)]) if is_alive(one)]
        if not left:
            return
        _signal_all(left, signal.SIGKILL)
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, from /proc: by parent, and by session for those re-parented."""
    parents: dict[int, list[int]] = {}
    session: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
            if int(fields[3]) == pid:
                session.append(int(entry.name))
    found: list[int] = []
    todo = [pid, *session]
    while todo:
        for child in parents.get(todo.pop(), []):
            if child not in found:
                found.append(child)
                todo.append(child)
    return [one for one in dict.fromkeys([*session, *found]) if one != pid]


def waiting_below(pid: int) -> tuple[str, ...]:
    """What the processes below one wait for, a line each: `sleep 60 (hrtimer_nanosleep)`.

    Those that wait for others of them are left out, and so is what comes after the fifth.
    """
    return waiting([one for one in descendants(pid) if is_alive(one)])


def waiting(pids: Sequence[int]) -> tuple[str, ...]:
    """What processes wait for; see `waiting_below`."""
    parents = {_parent(one) for one in pids}
    lines = [_waiting_for(one) for one in pids if one not in parents]
    more = len(lines) - _SHOWN
    return (*lines[:_SHOWN], *([f"{more} more"] if more > 0 else []))


def _waiting_for(pid: int) -> str:
    """A command, and the kernel's function in which it sleeps: proc(5), `wchan`."""
    place = Path(f"/proc/{pid}")
    return f"{_command(place)} ({_STATES.get(_state(place)) or _sleeps_in(place)})"


def _command(place: Path) -> str:
    words = [
        word.decode(errors="replace") for word in _read(place / "cmdline").split(b"\0") if word
    ]
    if len(words) > 1 and os.path.basename(words[0]).startswith(_EMULATORS):  # noqa: PTH119
        words = words[1:]
    line = " ".join(words) or _read(place / "comm").decode(errors="replace").strip() or "a process"
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."


def _sleeps_in(place: Path) -> str:
    name = _read(place / "wchan").decode(errors="replace").strip()
    if name and name != "0":
        return name
    number = _read(place / "syscall").decode(errors="replace").split()[:1]
    return f"system call {number[0]}" if number and number[0].isdecimal() else "waiting"


def _parent(pid: int) -> int:
    fields = _fields(Path(f"/proc/{pid}"))
    return int(fields[1]) if fields else 0


def _state(place: Path) -> str:
    fields = _fields(place)
    return fields[0] if fields else ""


def _fields(place: Path) -> list[str]:
    """The fields of a process's `stat` after its name, which may hold anything."""
    return _read(place / "stat").decode(errors="replace").rpartition(")")[2].split()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Return whether a process is there, and not only waits for its parent to notice its end."""
    return _state(Path(f"/proc/{pid}")) not in {"", "Z", "X"}


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
