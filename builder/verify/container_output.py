"""What containers print, made fit to be judged, shown and stored: it may be anything."""

from __future__ import annotations

import re

from builder.model import exact_json

LONGEST = 500  # characters of a reason
_OUTPUT_LINES = 40
_OUTPUT_LETTERS = 16_000
_DATA = "data: "
_DATA_LETTERS = 64_000
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what bytes that are no UTF-8 were decoded to
# ECMA-48: colours, cursor movements, titles of windows
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def readable(text: str) -> str:
    """Text without what moves a terminal; control characters and the like are replaced."""
    plain = _TERMINAL.sub("", text)
    return "".join(one if one.isprintable() or one in "\n\t" else _REPLACEMENT for one in plain)


def one_line(text: str) -> str:
    """Text on one line, what cannot be printed as an escape: a file's name may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def lines_of(text: str) -> list[str]:
    """The lines that say something, without data; a carriage return begins a new one."""
    lines = _TERMINAL.sub("", text).replace("\r", "\n").split("\n")
    return [line.strip() for line in lines if line.strip() and not line.startswith(_DATA)]


def last_line(text: str) -> str:
    """The last line that says something, at most `LONGEST` characters of it; else nothing."""
    lines = lines_of(text)
    return readable(lines[-1][:LONGEST]) if lines else ""


def is_rubbish(line: str) -> bool:
    """Return whether a line of `last_line` holds what is no text."""
    return _REPLACEMENT in line


def data_of(text: str) -> dict[str, object]:
    """The measured values of the last line `data: {JSON}`; none if that is no JSON object."""
    lines = _data_lines(text)
    return (_values(lines[-1]) or {}) if lines else {}


def all_data_of(text: str) -> list[dict[str, object]]:
    """The values of all lines `data: {JSON}`, of which there is one for each group of ranks."""
    found = map(_values, _data_lines(text))
    return [one for one in found if one is not None]


def _data_lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.startswith(_DATA)]


def _values(line: str) -> dict[str, object] | None:
    if len(line) > _DATA_LETTERS:
        return None
    try:
        found = exact_json.parsed(line.removeprefix(_DATA))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def end_of(*texts: str) -> str:
    """The last lines of some texts, bounded."""
    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    return readable("\n".join(lines[-_OUTPUT_LINES:])[-_OUTPUT_LETTERS:])
