"""The terminal: safe texts, colours, the output of commands, progress, and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID


def printable(text: str, *, most: int | None = None) -> str:
    """Return untrusted text as one line; characters that could control a terminal are escaped.

    A text longer than `most` characters is cut.
    """
    shown = "".join(
        letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[:most]
    )
    return shown + "..." if most is not None and len(text) > most else shown


def printable_lines(text: str) -> str:
    """Return untrusted text like `printable`, but keep line ends and tabs."""
    return "".join(letter if letter in "\n\t" else printable(letter) for letter in text)


def in_colour() -> bool:
    """Return whether standard output is a terminal with colours and NO_COLOR is not set."""
    return sys.stdout.isatty() and is_capable() and not os.environ.get("NO_COLOR")


def is_capable() -> bool:
    """Return whether the terminal can do more than print one line after another."""
    return os.environ.get("TERM", "dumb") != "dumb"


GREEN, RED, YELLOW, DIM, BOLD = "32", "31", "33", "2", "1"


class Paint:
    """Adds terminal colours to a text, or returns it unchanged without `colour`."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text


CAPTURE_LIMIT = 1 << 20  # bytes kept of a stream: half from its beginning, half from its end
_HALF = CAPTURE_LIMIT // 2
# Lines with these words are kept from the middle, too: by them a check says that it failed.
DENIALS = (b"FAILED", b"MPI started singletons")
_MOST_DENIALS = 1 << 14  # bytes
_AROUND = 200  # bytes of a line, before and after such a word


class Reader:
    """Reads a stream to its end in a thread; above `CAPTURE_LIMIT`, keeps beginning and end."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._stream = stream
        self._head, self._tail, self._denials = bytearray(), bytearray(), bytearray()
        self._dropped = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            while chunk := os.read(self._stream.fileno(), 1 << 16):
                room = _HALF - len(self._head)
                self._head += chunk[:room]
                self._tail += chunk[room:]
                if len(self._tail) > CAPTURE_LIMIT:
                    self._shorten()

    def _shorten(self) -> None:
        over = max(0, len(self._tail) - _HALF)
        for word in DENIALS:
            self._keep_lines(word, over)
        del self._tail[:over]
        self._dropped += over

    def _keep_lines(self, word: bytes, over: int) -> None:
        """Keep the lines with a word from the `over` bytes that are dropped."""
        end = over + len(word) - 1 if over else 0
        at = self._tail.find(word, 0, end)
        while at >= 0 and len(self._denials) < _MOST_DENIALS:
            first = max(self._tail.rfind(b"\n", 0, at) + 1, at - _AROUND)
            last = self._tail.find(b"\n", at, at + _AROUND)
            last = at + _AROUND if last < 0 else last
            self._denials += self._tail[first:last] + b"\n"
            at = self._tail.find(word, last, end)

    def text(self, wait_s: float) -> str:
        """Return the output as text, once the stream has ended or after `wait_s` seconds."""
        self._thread.join(timeout=wait_s)
        self._shorten()
        head, tail = self._head.decode(errors="replace"), self._tail.decode(errors="replace")
        denials = self._denials.decode(errors="replace")
        note = f"\n[{self._dropped} bytes left out]\n{denials}" if self._dropped else ""
        return head + note + tail


_STEP = 1 << 30  # bytes between two progress lines of an archive
_LONGEST_STATUS = 160
_MARKS = {"verified": "✓", "failed": "✗", "unchanged": "=", "built": "✓"}

# A share that a tool prints: `[ 45%]` of CMake and pip, `[12/480]` of Ninja.
_SHARE = re.compile(
    r"(?<![\d.])(?P<percent>\d{1,3})(?:\.\d+)? ?%|\[(?P<part>\d{1,9})/(?P<all>[1-9]\d{0,8})\]"
)
# The text of a `Progress` about an image that is at one step for long
_STILL = re.compile(r"still, for [^:]+: (?P<summary>.*)")
_MINUTE, _HOUR = 60, 3600


def duration(seconds: float) -> str:
    """Return a duration in words: `45 s`, `3 min 10 s`, `2 h 5 min`."""
    total = int(seconds)
    if total < _MINUTE:
        return f"{total} s"
    if total < _HOUR:
        return f"{total // _MINUTE} min {total % _MINUTE} s"
    return f"{total // _HOUR} h {total % _HOUR // _MINUTE} min"


@dataclass(slots=True)
class _ImageStatus:
    """The current step of an image: since when, its detail, and the last line of its output."""

    text: str
    since: float = field(default_factory=time.monotonic)
    shown: float = field(default_factory=time.monotonic)
    detail: str = ""
    line: str = ""

    @property
    def share(self) -> str:
        """The share of the step that its last line names: `45 %`; empty if it names none."""
        match = None
        for match in _SHARE.finditer(self.line):  # noqa: B007 - the last one counts
            pass
        if match is None:
            return ""
        percent = int(match["percent"] or 100 * int(match["part"]) // int(match["all"]))
        return f"{percent} %" if percent <= 100 else ""  # noqa: PLR2004 - of a hundred

    def summary(self, most: int) -> str:
        """Return step, detail, share and last line in at most `most` characters."""
        step = " ".join(filter(None, [self.text, self.detail]))
        if not self.line:
            return step[:most]
        step = step if len(step) <= most // 2 else f"{step[: most // 2 - 3]}..."
        return " | ".join(filter(None, [step, self.share, self.line.strip()]))[:most]


class Progress:
    """Prints lines with the time since the start. `level`: 0 is quiet, 1 normal, 2 verbose.

    An image of which nothing was printed for `every_s` seconds gets a line that says what it is at.
    """

    def __init__(
        self, *, level: int = 1, stream: IO[str] | None = None, every_s: float = 30.0
    ) -> None:
        self.level = level
        self._stream = stream or sys.stderr
        self._start = time.monotonic()
        self._lock = threading.RLock()
        self._every_s = every_s
        self._now: dict[str, _ImageStatus] = {}

    @contextlib.contextmanager
    def running(self, identifiers: list[str]) -> Iterator[None]:
        """Show the progress of these images while the context lasts."""
        del identifiers
        with self._ticking(self._every_s / 10):
            yield

    @contextlib.contextmanager
    def _ticking(self, pause_s: float) -> Iterator[None]:
        """Call `_tick` from time to time, in a thread."""
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(pause_s):
                self._tick()

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join()

    def _tick(self) -> None:
        """Print a line for each image of which nothing was printed for a while."""
        now = time.monotonic()
        for identifier, status in [*self._now.items()]:
            if self.level and now - status.shown >= self._every_s:
                status.shown = now
                took = duration(now - status.since)
                self._print(f"{identifier}: still, for {took}: {status.summary(_LONGEST_STATUS)}")

    def step(self, identifier: str, text: str) -> None:
        """Show that an image has reached a new step."""
        self._now[identifier] = _ImageStatus(text)
        if self.level:
            self._print(f"{identifier}: {text}")

    def detail(self, identifier: str, text: str) -> None:
        """Show a detail of the current step."""
        if status := self._now.get(identifier):
            status.detail, status.line = text, ""
        if self.level > 1:
            self._print(f"{identifier}: {text}")

    def output(self, identifier: str, line: str) -> None:
        """Note the last line that the current step of an image printed."""
        if (status := self._now.get(identifier)) and line.strip():
            status.line = line
            if self.level > 1:  # it is printed
                status.shown = time.monotonic()

    def relay(self, identifier: str, machine: str, line: str) -> None:
        """Show a line of progress of an image on another machine; a long step beside the image."""
        text = line.removeprefix(f"{identifier}: ")
        match = _STILL.fullmatch(text)
        if status := self._now.get(identifier):
            status.detail, status.line = match["summary"] if match else text, ""
        if not match:
            self.say(f"{machine}: {line}")

    def pause(self, identifier: str) -> None:
        """Note that nothing runs for an image until its next step."""
        self._now.pop(identifier, None)

    def finish(self, identifier: str, outcome: str, text: str) -> None:
        """Show that an image is done: verified, built, unchanged or failed."""
        self.pause(identifier)
        if self.level or outcome == "failed":
            self._print(f"{_MARKS.get(outcome, ' ')} {identifier}: {outcome}{text and ', ' + text}")

    def say(self, text: str) -> None:
        """Print a line that belongs to no image."""
        if self.level:
            self._print(text)

    def echo(self, line: str) -> None:
        """Print a line of a subprocess's output."""
        if self.level > 1:
            self._print(f"  {line}")

    def _print(self, text: str) -> None:
        with self._lock:
            print(
                f"[{time.monotonic() - self._start:6.1f} s] {printable_lines(text)}",
                file=self._stream,
                flush=True,
            )


class ByteProgress:
    """Reports from time to time how many bytes of an archive are done."""

    def __init__(self, say: Callable[[str], object], total: int, verb: str) -> None:
        self._say, self._total, self._verb = say, total, verb
        self._done = self._reported = 0

    def __call__(self, size: int) -> None:
        """Count bytes that have been processed."""
        self._done += size
        if self._done - self._reported >= _STEP:
            self._reported = self._done
            self._say(f"{self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB {self._verb}")


_REFRESH_S = 0.5  # between two looks at the last lines of output
_TIME_WIDTH = 12  # of the last column, and the spaces between columns


class LiveProgress(Progress):
    """Shows a live table of images with the current step of each, for terminals."""

    def __init__(self, *, level: int = 1) -> None:
        super().__init__(level=level)
        from rich import progress  # noqa: PLC0415 - slow, and only needed on terminals
        from rich.console import Console  # noqa: PLC0415

        self._table = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.TextColumn("{task.fields[text]}"),
            progress.TimeElapsedColumn(),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self._rows: dict[str, TaskID] = {}
        self._most = 70  # characters of a row, besides the identifier and the time

    @contextlib.contextmanager
    def running(self, identifiers: list[str]) -> Iterator[None]:
        longest = max(map(len, identifiers), default=0)
        self._most = max(self._most, self._table.console.width - longest - _TIME_WIDTH)
        for identifier in identifiers:
            self.step(identifier, "waiting")
        with self._table, self._ticking(_REFRESH_S):
            yield

    def _tick(self) -> None:
        for identifier, status in [*self._now.items()]:
            with self._lock:  # else the end of the image could be shown in between
                if self._now.get(identifier) is status:
                    self._show(identifier, status.summary(self._most))

    def step(self, identifier: str, text: str) -> None:
        self._now[identifier] = _ImageStatus(text)
        self._show(identifier, text)

    def detail(self, identifier: str, text: str) -> None:
        super().detail(identifier, text)
        if status := self._now.get(identifier):
            self._show(identifier, status.summary(self._most))

    def finish(self, identifier: str, outcome: str, text: str) -> None:
        self.pause(identifier)
        first, *more = text.splitlines() or [""]
        style = "red" if outcome == "failed" else "green" if outcome in _MARKS else "none"
        self._show(identifier, f"{_MARKS.get(outcome, ' ')} {outcome} {first}", style)
        self._table.stop_task(self._rows[identifier])
        if outcome == "failed" or more:  # a row is too short for an error
            self._print(f"{_MARKS.get(outcome, ' ')} {identifier}: {outcome}, {text}")

    def _show(self, identifier: str, text: str, style: str = "none") -> None:
        from rich.markup import escape  # noqa: PLC0415

        shown = f"[{style}]{escape(printable(text.strip()[: self._most]))}[/]"
        with self._lock:
            if identifier not in self._rows:
                self._rows[identifier] = self._table.add_task(identifier, total=None, text=shown)
        self._table.update(self._rows[identifier], text=shown)

    def _print(self, text: str) -> None:
        self._table.console.print(printable_lines(text), markup=False, highlight=False)


def progress_for(level: int) -> Progress:
    """Return the live table on a terminal (unless verbose), plain lines elsewhere."""
    if level == 1 and sys.stderr.isatty() and is_capable():
        return LiveProgress(level=level)
    return Progress(level=level)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptions(note: Callable[[], object]) -> Iterator[None]:
    """Call `note` for each interruption, instead of raising an exception at an arbitrary point.

    An exception raised inside a lock of `threading` can break it, so that its next use fails.
    `note` must be reentrant, as `queue.SimpleQueue.put` is. Ignored signals stay ignored (`nohup`
    ignores SIGHUP); outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: note()) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
