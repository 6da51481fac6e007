"""What is shown on a terminal: texts that cannot steer it, and whether it has colours."""

from __future__ import annotations

import os
import sys


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
    """Whether the terminal can do more than print one line below the other."""
    return os.environ.get("TERM", "dumb") != "dumb"
