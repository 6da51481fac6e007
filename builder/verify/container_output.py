"""The output of containers, made fit to be judged, shown and stored: it may be anything."""

from __future__ import annotations

import re

from builder.model import exact_json

LONGEST = 500  # characters of a reason
_OUTPUT_LINES = 40
_OUTPUT_LETTERS = 16_000
_DATA = "data: "
_DATA_LETTERS = 64_000
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # of bytes that are no UTF-8
# ECMA-48: colours, cursor movements, titles of windows
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def readable(text: str) -> str:
    """Return text without sequences that move a terminal; control characters are replaced."""
    plain = _TERMINAL.sub("", text)
    return "".join(c if c.isprintable() or c in "\n\t" else _REPLACEMENT for c in plain)


def one_line(text: str) -> str:
    """Return text on one line, with escapes for the rest: a file's name may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def lines_of(text: str) -> list[str]:
    """Return the lines that say something, without data; a carriage return begins a new one."""
    lines = _TERMINAL.sub("", text).replace("\r", "\n").split("\n")
    return [line.strip() for line in lines if line.strip() and not line.startswith(_DATA)]


def last_line(text: str) -> str:
    """Return the last line that says something, at most `LONGEST` characters; else nothing."""
    lines = lines_of(text)
    return readable(lines[-1][:LONGEST]) if lines else ""


def is_rubbish(line: str) -> bool:
    """Return whether a line of `last_line` has characters that were replaced."""
    return _REPLACEMENT in line


def data_of(text: str) -> dict[str, object]:
    """Return the measured values of the last line `data: {JSON}`; none if that is no object."""
    data = [_values(line) for line in text.split("\n") if line.startswith(_DATA)]
    return (data[-1] or {}) if data else {}


def all_data_of(text: str) -> list[dict[str, object]]:
    """Return the values of all lines `data: {JSON}`, of which each group of ranks prints one."""
    data = [_values(line) for line in text.split("\n") if line.startswith(_DATA)]
    return [values for values in data if values is not None]


def _values(line: str) -> dict[str, object] | None:
    if len(line) > _DATA_LETTERS:
        return None
    try:
        values = exact_json.parsed(line.removeprefix(_DATA))
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


def end_of(*texts: str) -> str:
    """Return the last lines of some texts, at most 40 lines and 16,000 characters."""
    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    return readable("\n".join(lines[-_OUTPUT_LINES:])[-_OUTPUT_LETTERS:])
