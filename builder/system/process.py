"""Subprocesses: only this module starts them.

Commands are argument lists, never shell strings. Each command leads its own session, so that it
can be ended with everything it started: on a timeout, on Ctrl-C, or when another part of the run
fails. Output goes to a log file, or is kept up to a limit; errors quote its end.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from builder.model.errors import Interrupted, MissingPrerequisite, StepFailed
from builder.system.descendants import descendants, end_tree, signal_all, waiting_below
from builder.system.terminal import SIGNALS, Reader

TAIL_LINES = 30
GRACE_S = 5.0
# Signals that `interactive` passes on. Ctrl-C and Ctrl-\\ reach all programs on the terminal.
_PASSED_ON = (*SIGNALS, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_OF_KEYS = (signal.SIGINT, signal.SIGQUIT)
_LONGEST_LINE = 1 << 16  # bytes; the rest of a longer one counts as another line
_BREAK_OFF_S = 0.5  # for a command to end after its output broke off

_PACKAGE = Path(__file__).parents[1]
_SUPERVISOR = (
    f"import sys; sys.path.insert(0, {str(_PACKAGE.parent)!r}); "
    "from builder.system.descendants import main; main()"
)

Argument = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Completed:
    """A finished command. Its output is text of limited size (builder.system.terminal).

    After a timeout, `waiting` has a line for each process that the command waited for.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str = ""
    stderr: str = ""
    duration_s: float = 0.0
    timed_out: bool = False
    waiting: tuple[str, ...] = ()

    @property
    def waited_for(self) -> str:
        """The processes that a command waited for at its timeout, as the end of a message."""
        return f"; it was waiting for: {', '.join(self.waiting)}" if self.waiting else ""


class Processes:
    """Starts subprocesses, and can end all that are still running.

    `echo` receives each output line of logged commands as it arrives (`--verbose`). `mark` is added
    to the environment of every command, where `builder.system.orphans` looks for it.
    One instance serves a whole run and all of its threads.
    """

    def __init__(self, *, echo: Callable[[str], None] | None = None) -> None:
        self._echo = echo
        self.mark: dict[str, str] = {}
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopping = threading.Event()

    def logged(
        self,
        argv: Sequence[Argument],
        *,
        log: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        what: str = "",
        hint: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> Completed:
        """Run a command with both of its streams appended to `log`; raise `StepFailed` on failure.

        `what` names the step in the error. `on_line` receives each line as it arrives.
        """
        words = tuple(os.fspath(word) for word in argv)
        name = what or words[0]
        tail: deque[str] = deque(maxlen=TAIL_LINES)
        start = time.monotonic()
        with log.open("ab", buffering=0) as sink:  # others follow it
            sink.write(f"+ {shlex.join(words)}\n".encode())
            with self._started(words, cwd, env, user, stderr=subprocess.STDOUT) as child:
                assert child.stdout is not None
                while raw := child.stdout.readline(_LONGEST_LINE):
                    sink.write(raw)
                    line = raw.decode(errors="replace").rstrip("\r\n")
                    tail.append(line)
                    for listener in (on_line, self._echo):
                        if listener:
                            listener(line)
                returncode = child.wait()
        self._raise_if_stopping()
        if returncode:
            text = f"{name}: {_ended(returncode)}"
            raise StepFailed(text, tail=tail, log=log, hint=hint, status=returncode)
        return Completed(argv=words, returncode=0, duration_s=time.monotonic() - start)

    def capture(
        self,
        argv: Sequence[Argument],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
        check: bool = True,
        hint: str = "",
        supervised: bool = False,
        look: Callable[[int], tuple[str, ...]] = waiting_below,
        input_text: str = "",
    ) -> Completed:
        """Run a command and return its two streams.

        With `check`, failure raises `StepFailed`; without, the caller reads `returncode` and
        `timed_out`. A `supervised` command is ended with everything it started, even processes that
        left its session and parent (builder.system.descendants). On a timeout, `look` gets the
        command's process id and returns what it waits for. `input_text` (some kB at most) is its
        standard input; secrets go there, and never into arguments.
        """
        words = tuple(os.fspath(word) for word in argv)
        start = time.monotonic()
        stdin = subprocess.PIPE if input_text else subprocess.DEVNULL
        with self._started(words, cwd, env, user, stdin=stdin, supervised=supervised) as child:
            deadline = _Deadline(child, timeout_s, look)
            with deadline:
                if child.stdin:
                    with contextlib.suppress(BrokenPipeError), child.stdin:
                        child.stdin.write(input_text.encode())
                stderr, stdout = Reader(child.stderr), Reader(child.stdout)
                returncode = child.wait()
                # Processes that it left in its session may hold the pipes open.
                signal_all(descendants(child.pid), signal.SIGKILL)
                output, errors = stdout.text(GRACE_S), stderr.text(GRACE_S)
        self._raise_if_stopping()
        if check and (returncode or deadline.expired):
            end = f"no result after {timeout_s} s" if deadline.expired else _ended(returncode)
            tail = (errors or output).splitlines()[-TAIL_LINES:]
            raise StepFailed(f"{shlex.join(words)}: {end}", tail=tail, hint=hint)
        return Completed(
            argv=words,
            returncode=returncode,
            stdout=output,
            stderr=errors,
            duration_s=time.monotonic() - start,
            timed_out=deadline.expired,
            waiting=deadline.waiting,
        )

    def interactive(
        self,
        argv: Sequence[Argument],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        targets: Callable[[], Sequence[int]] | None = None,
    ) -> int:
        """Run a command with this program's streams, on its terminal; return its exit status.

        After a signal that is 128 and the signal's number, as in a shell. An interruption from the
        terminal is the command's alone. With `targets` the command is supervised, and other signals
        are passed on to the processes that `targets` returns, or to all if it returns none.
        """
        words = tuple(os.fspath(word) for word in argv)
        with (
            self._started(
                words,
                cwd,
                env,
                user,
                stdin=None,
                stdout=None,
                stderr=None,
                supervised=targets is not None,
                own_session=False,
            ) as child,
            _signals_for(child.pid, targets),
        ):
            status = child.wait()
            return status if status >= 0 else 128 - status

    @contextlib.contextmanager
    def reading_from(self, argv: Sequence[Argument]) -> Iterator[IO[bytes]]:
        """Open the standard output of a command as a stream; the caller must read it to its end."""
        words = tuple(os.fspath(word) for word in argv)
        with self._started(words) as child:
            assert child.stdout is not None
            stderr = Reader(child.stderr)
            failure: Exception | None = None
            try:
                yield child.stdout
                child.stdout.read()
            except Exception as error:  # the output may have broken off because the command failed
                failure = error
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=_BREAK_OFF_S)
            self._raise_if_stopping()
            if code := child.poll() if failure else child.wait():
                tail = stderr.text(GRACE_S).splitlines()[-TAIL_LINES:]
                raise StepFailed(f"{shlex.join(words)}: {_ended(code)}", tail=tail) from failure
            if failure:
                raise failure

    @property
    def stopping(self) -> bool:
        """True after `stop`."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """End every running command, and refuse to start new ones."""
        self._stopping.set()
        with self._lock:
            running = list(self._running)
        enders = [
            threading.Thread(target=end_tree, args=(child.pid,), kwargs={"grace_s": GRACE_S})
            for child in running
        ]
        for ender in enders:  # all at once, to share one grace period
            ender.start()
        for ender in enders:
            ender.join()

    def _raise_if_stopping(self) -> None:
        if self._stopping.is_set():
            raise Interrupted("interrupted")

    @contextlib.contextmanager
    def _started(
        self,
        words: tuple[str, ...],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        *,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
        supervised: bool = False,
        own_session: bool = True,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command; on exit, end all of its processes that still run."""
        self._raise_if_stopping()
        environment = {**os.environ, **self.mark, **(env or {})}
        entry = None if user is None else _entry(user)
        if entry:
            names = {"USER": entry.pw_name, "LOGNAME": entry.pw_name, "HOME": entry.pw_dir}
            environment |= names
        if supervised:  # the supervisor runs as the caller, who may end the user's processes
            words, entry = (
                (sys.executable, "-I", "-S", "-c", _SUPERVISOR, user or "-", *words),
                None,
            )
        try:
            child = subprocess.Popen(  # noqa: S603 - argument lists only, by design
                words,
                cwd=cwd,
                env=environment,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=own_session,
                user=entry and entry.pw_uid,
                group=entry and entry.pw_gid,
                extra_groups=None if entry is None else [],
            )
        except FileNotFoundError as error:
            raise MissingPrerequisite(
                f"{words[0]}: no such program on this machine",
                hint="'build-images doctor' lists what is missing and how to get it",
            ) from error
        with self._lock:
            self._running.add(child)
        try:
            self._raise_if_stopping()  # `stop` may have run before this child existed
            yield child
        finally:
            if child.poll() is None:
                end_tree(child.pid, grace_s=GRACE_S)
            child.wait()
            with self._lock:
                self._running.discard(child)


@contextlib.contextmanager
def _signals_for(pid: int, targets: Callable[[], Sequence[int]] | None) -> Iterator[None]:
    """Handle this process's signals while a command runs on its terminal: see `interactive`."""

    def pass_on(number: int, _frame: object) -> None:
        if targets and not (number in _OF_KEYS and _is_in_foreground()):
            signal_all(targets() or descendants(pid), signal.Signals(number))

    numbers = _PASSED_ON if targets else (signal.SIGINT,)
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Return whether the terminal sends its signals to this process and the commands it runs."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # there is no terminal
        return False


class _Deadline:
    """Ends a child at a timeout: `expired` is true then, `waiting` what it waited for."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        timeout_s: float | None,
        look: Callable[[int], tuple[str, ...]],
    ) -> None:
        self.expired = False
        self.waiting: tuple[str, ...] = ()
        self._child, self._look = child, look
        self._timer = threading.Timer(timeout_s, self._expire) if timeout_s else None

    def _expire(self) -> None:
        self.expired = True
        with contextlib.suppress(Exception):  # the child is ended in any case
            self.waiting = self._look(self._child.pid)
        end_tree(self._child.pid, grace_s=1.0)

    def __enter__(self) -> None:
        if self._timer:
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()


def _ended(returncode: int) -> str:
    if returncode < 0:
        return f"ended by {signal.Signals(-returncode).name}"
    return f"exit status {returncode}"


def _entry(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise MissingPrerequisite(
            f"user {user} is missing: root runs Apptainer and Charliecloud as this user",
            hint="build-images setup creates it",
        ) from error
