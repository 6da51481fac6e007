"""What is shown on a terminal: texts that cannot steer it, and whether it has colours."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def printable(text: str, *, most: int | None = None) -> str:
    """One line of somebody else's: what would steer a terminal, or is no character, is spelt out.

    Of what is longer than `most` letters, the beginning.
    """
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text[:most])
    return shown + "..." if most is not None and len(text) > most else shown


def printable_lines(text: str) -> str:
    """The same of several lines: ends of lines and tabs stay."""
    return "".join(one if one in "\n\t" else printable(one) for one in text)


def in_colour() -> bool:
    """Whether standard output is a terminal with colours, and they are wanted: no-color.org."""
    return sys.stdout.isatty() and is_capable() and not os.environ.get("NO_COLOR")


def is_capable() -> bool:
    """Return whether the terminal can do more than print one line below the other."""
    return os.environ.get("TERM", "dumb") != "dumb"


GREEN, RED, YELLOW, DIM, BOLD = "32", "31", "33", "2", "1"


class Paint:
    """Puts the terminal's colours around a text, or leaves it as it is."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text


CAPTURE_LIMIT = 1 << 20  # bytes of a stream: half of them from its beginning, half from its end
_HALF = CAPTURE_LIMIT // 2
_LONGEST_LINE = 1 << 16


def lines_of(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines of a stream as they come; of very long lines, pieces."""
    while piece := stream.readline(_LONGEST_LINE):
        yield piece


class Reader:
    """Reads a stream to its end in a thread; of what is over `CAPTURE_LIMIT`, keeps both ends."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._stream = stream
        self._head, self._tail = bytearray(), bytearray()
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
        del self._tail[:over]
        self._dropped += over

    def text(self, wait_s: float) -> str:
        """What was read, as text, when the stream ended or `wait_s` seconds went by."""
        self._thread.join(timeout=wait_s)
        self._shorten()
        head, tail = self._head.decode(errors="replace"), self._tail.decode(errors="replace")
        return head + (f"\n[{self._dropped} bytes left out]\n" if self._dropped else "") + tail


_STEP = 1 << 30  # bytes after which it is told how far an archive is
_MARKS = {"verified": "✓", "failed": "✗", "unchanged": "=", "built": "✓"}


class Progress:
    """Plain lines, each with the time since the start. `level` 0 is quiet, 1 normal, 2 verbose."""

    def __init__(self, *, level: int = 1, stream: IO[str] | None = None) -> None:
        self.level = level
        self._stream = stream or sys.stderr
        self._start = time.monotonic()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def running(self, identifiers: list[str]) -> Iterator[None]:
        """The time in which images are worked on."""
        del identifiers
        yield

    def step(self, identifier: str, text: str) -> None:
        """An image has come to a new step."""
        if self.level:
            self._print(f"{identifier}: {text}")

    def detail(self, identifier: str, text: str) -> None:
        """A line of what goes on within a step."""
        if self.level > 1:
            self._print(f"{identifier}: {text}")

    def finish(self, identifier: str, outcome: str, text: str) -> None:
        """An image is done: verified, built, unchanged or failed."""
        if self.level or outcome == "failed":
            self._print(f"{_MARKS.get(outcome, ' ')} {identifier}: {outcome}{text and ', ' + text}")

    def say(self, text: str) -> None:
        """A line that belongs to no image."""
        if self.level:
            self._print(text)

    def echo(self, line: str) -> None:
        """A line of a subprocess's output."""
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
    """Says how far the bytes of an archive are, now and then."""

    def __init__(self, say: Callable[[str], object], whole: int, what: str) -> None:
        self._say, self._whole, self._what = say, whole, what
        self._done = self._told = 0

    def __call__(self, size: int) -> None:
        """So many more bytes are done."""
        self._done += size
        if self._done - self._told >= _STEP:
            self._told = self._done
            self._say(f"{self._done / 1e9:.1f} of {self._whole / 1e9:.1f} GB {self._what}")


class LiveProgress(Progress):
    """A table of images and what each is at, for terminals."""

    def __init__(self, *, level: int = 1) -> None:
        super().__init__(level=level)
        from rich.console import Console  # noqa: PLC0415 - only terminals pay for it

        self._console = Console(stderr=True)
        self._rows: dict[str, tuple[str, str, float, float | None]] = {}

    @contextlib.contextmanager
    def running(self, identifiers: list[str]) -> Iterator[None]:
        from rich.live import Live  # noqa: PLC0415

        now = time.monotonic()
        self._rows = dict.fromkeys(identifiers, ("waiting", "", now, None))
        with Live(get_renderable=self._table, console=self._console, refresh_per_second=4):
            yield

    def step(self, identifier: str, text: str) -> None:
        self._row(identifier, text, "")

    def detail(self, identifier: str, text: str) -> None:
        if identifier in self._rows:
            self._row(identifier, self._rows[identifier][0], text)

    def finish(self, identifier: str, outcome: str, text: str) -> None:
        first, *more = text.splitlines() or [""]
        self._row(identifier, f"{_MARKS.get(outcome, ' ')} {outcome}", first, done=True)
        if outcome == "failed" or more:  # a row is too short for what went wrong
            self._print(f"{_MARKS.get(outcome, ' ')} {identifier}: {outcome}, {text}")

    def _row(self, identifier: str, step: str, text: str, *, done: bool = False) -> None:
        with self._lock:
            start = self._rows.get(identifier, ("", "", time.monotonic(), None))[2]
            self._rows[identifier] = (step, text, start, time.monotonic() if done else None)

    def _print(self, text: str) -> None:
        self._console.print(printable_lines(text), markup=False, highlight=False)

    def _table(self) -> Table:
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=None, pad_edge=False)
        for heading in ("image", "", "time"):
            table.add_column(heading, no_wrap=True, overflow="ellipsis")
        with self._lock:
            rows = dict(self._rows)
        for name, (step, detail, start, end) in rows.items():
            seconds = (end or time.monotonic()) - start
            table.add_row(
                name,
                Text(printable(f"{step} {detail}".strip()[:70])),
                f"{seconds:.0f} s",
                style=_style(step),
            )
        return table


def _style(step: str) -> str:
    if step.startswith("✗"):
        return "red"
    return "green" if step.startswith(("✓", "=")) else ""


def progress_for(level: int) -> Progress:
    """The live table on a terminal (unless verbose), plain lines elsewhere."""
    if level == 1 and sys.stderr.isatty() and is_capable():
        return LiveProgress(level=level)
    return Progress(level=level)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptions(note: Callable[[], object]) -> Iterator[None]:
    """Call `note` for each interruption, in place of an exception at an arbitrary point.

    An exception that is raised inside the locks of `threading` leaves them in a state in which the
    next use of them fails. `note` must be reentrant, as `queue.SimpleQueue.put` is. A signal that
    is ignored, as `nohup` does with SIGHUP, stays so; outside the main thread nothing changes.
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


def uninterrupted() -> contextlib.AbstractContextManager[None]:
    """Disregard interruptions: the end is under way already."""
    return interruptions(lambda: None)
