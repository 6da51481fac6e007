"""What is shown on a terminal: texts that cannot steer it, and whether it has colours."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import IO


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
