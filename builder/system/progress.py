"""What is told while the work goes on: a live table on a terminal, plain lines elsewhere.

All of it goes to standard error; results go to standard output.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

from builder.system.terminal import is_capable, printable, printable_lines

if TYPE_CHECKING:
    from rich.table import Table

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


class Told:
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
