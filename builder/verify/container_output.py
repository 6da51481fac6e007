"""Make the output of containers, which may hold anything, safe to judge, show and store."""

from __future__ import annotations

import re

from builder.model import exact_json

LONGEST = 500  # characters of a reason
_OUTPUT_LINES = 40
_OUTPUT_LETTERS = 16_000
_DATA = "data: "
_DATA_LETTERS = 64_000
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # stands for bytes that are not UTF-8
# ECMA-48: colours, cursor movements, window titles
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def readable(text: str) -> str:
    """Return text without terminal escape sequences; control characters are replaced."""
    plain = _TERMINAL.sub("", text)
    return "".join(c if c.isprintable() or c in "\n\t" else _REPLACEMENT for c in plain)


def one_line(text: str) -> str:
    """Return text on one line with other characters escaped: file names may contain any."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def lines_of(text: str) -> list[str]:
    """Return the non-empty lines, except data lines; a carriage return begins a new line."""
    lines = _TERMINAL.sub("", text).replace("\r", "\n").split("\n")
    return [line.strip() for line in lines if line.strip() and not line.startswith(_DATA)]


def last_line(text: str) -> str:
    """Return the last line of `lines_of`, at most `LONGEST` characters; empty if there is none."""
    lines = lines_of(text)
    return readable(lines[-1][:LONGEST]) if lines else ""


def last_words(text: str) -> str:
    """Return the last line of text that has a letter or a digit: launchers frame what they say."""
    lines = [line for line in text.split("\n") if any(map(str.isalnum, line))]
    return last_line("\n".join(lines))


def is_rubbish(line: str) -> bool:
    """Return whether a line from `last_line` contains replaced characters."""
    return _REPLACEMENT in line


def data_of(text: str) -> dict[str, object]:
    """Return the values of the last line `data: {JSON}`; empty if that is not a JSON object."""
    data = [_values(line) for line in text.split("\n") if line.startswith(_DATA)]
    return (data[-1] or {}) if data else {}


def all_data_of(text: str) -> list[dict[str, object]]:
    """Return the values of all lines `data: {JSON}`; each group of ranks prints one line."""
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
    """Return the end of these texts: at most 40 lines and 16,000 characters."""
    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    return readable("\n".join(lines[-_OUTPUT_LINES:])[-_OUTPUT_LETTERS:])
