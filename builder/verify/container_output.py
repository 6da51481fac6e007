"""Make the output of containers, which may hold anything, safe to judge, show and store.

A script in the container notes what becomes of a user's program, in a folder of this machine.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from builder.model import exact_json
from builder.system.descendants import descendants, with_children
from builder.system.files import read_regular

LONGEST = 500  # characters of a reason
_OUTPUT_LINES = 40
_OUTPUT_LETTERS = 16_000
_DATA = "data: "
_DATA_LETTERS = 64_000
_DEEPEST = 20  # levels of data; what writes them as JSON would fail at some hundred
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # stands for bytes that are not UTF-8
NOT_ARRIVED = "no line says that all messages arrived; its last line"
_ALL_ARRIVED = re.compile(r"\d+ ranks? on \d+ hosts?: ")
# ECMA-48: colours, cursor movements, window titles
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def readable(text: str) -> str:
    """Return text without terminal escape sequences; control characters are replaced."""
    plain = _TERMINAL.sub("", text)
    return "".join(c if c.isprintable() or c in "\n\t" else _REPLACEMENT for c in plain)


def all_arrived(lines: Iterable[str]) -> str:
    """Return the line by which `mpi` says that all messages arrived; empty if it does not."""
    return next(filter(_ALL_ARRIVED.match, lines), "")


def lines_of(text: str) -> list[str]:
    """Return the non-empty lines, except data lines; a carriage return begins a new line."""
    lines = _TERMINAL.sub("", text).replace("\r", "\n").split("\n")
    return [line.strip() for line in lines if line.strip() and not line.startswith(_DATA)]


def last_line(text: str) -> str:
    """Return the last line of `lines_of`, at most `LONGEST` characters; empty if there is none."""
    lines = lines_of(text)
    return readable(lines[-1][:LONGEST]) if lines else ""


def last_message(text: str) -> str:
    """Return the last line of text that has a letter or a digit: launchers frame what they say."""
    lines = [line for line in text.split("\n") if any(map(str.isalnum, line))]
    return last_line("\n".join(lines))


def is_unreadable(line: str) -> bool:
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
    return values if isinstance(values, dict) and _is_shallow(values, _DEEPEST) else None


def _is_shallow(value: object, levels: int) -> bool:
    """Return whether a value has at most so many levels of objects and lists."""
    if not isinstance(value, (dict, list)):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_shallow(each, levels - 1) for each in parts)


def end_of(*texts: str) -> str:
    """Return the end of these texts: at most 40 lines and 16,000 characters."""
    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    return readable("\n".join(lines[-_OUTPUT_LINES:])[-_OUTPUT_LETTERS:])


# ---- Notes about a user's program ----

NOTES_AT = "/.build-images-run"  # in the container
# It is the parent of the program, and signals do not end it. A shell would print which signal ended
# the program, and Buildah any status but 0. Variables may precede the program, as env(1) has it.
NOTING_SCRIPT = f"""\
trap : HUP INT QUIT TERM USR1 USR2
exec 3>&2 2>/dev/null
echo $$ >{NOTES_AT}/started
(umask %s; exec env -- "$@" 2>&3 3>&-)
status=$?
times >{NOTES_AT}/times
if [ $status = 127 ] && ! command -v "$0" >/dev/null; then
    echo "build-images: $0: no such command in the image" >&3
fi
echo $status >{NOTES_AT}/status
%s
[ -s {NOTES_AT}/status ] || exit $status
"""
_TIME = re.compile(r"(\d+)m([\d.]+)s")
_STATUS = re.compile(r"\d{1,3}\n")
_MOST_BYTES = 1000  # of a note
_KILLED = 128 + signal.SIGKILL


@dataclass(kw_only=True, slots=True)
class ProgramNotes:
    """The script's notes about a program; programs of the image could change them, too."""

    folder: Path
    pid: int = 0

    def read(self, name: str) -> str:
        """Return a note; empty if there is none."""
        try:
            return read_regular(self.folder / name, _MOST_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def at(self, name: str, otherwise: float = 0.0) -> float:
        """Return when a note was written, in seconds since 1970."""
        try:
            return (self.folder / name).lstat().st_mtime
        except OSError:
            return otherwise

    def processes(self) -> list[int]:
        """Return the script's process and all below it; none before its start."""
        if not self.pid:
            text = self.read("started").strip()
            pid = int(text) if text.isdecimal() else 0
            self.pid = pid if pid in descendants(os.getpid()) else 0
        return with_children(self.pid) if self.pid else []

    def status(self, ended: int) -> int:
        """Return the program's exit status; if its container was killed, that of a killed program.

        On Ctrl-C Buildah kills it, and returns 1. On a full disk the script returns the status.
        """
        text = self.read("status")
        if _STATUS.fullmatch(text):
            return int(text)
        return ended if self.has_no_room else max(ended, _KILLED)

    @property
    def has_no_room(self) -> bool:
        """True if the script reached its end, and could write no status."""
        try:
            return (self.folder / "status").lstat().st_size == 0
        except OSError:
            return False

    @property
    def cpu_s(self) -> float:
        """The processor time of the program and of all its processes that ended."""
        times = _TIME.findall(self.read("times").partition("\n")[2])
        return sum(60 * int(minutes) + float(seconds) for minutes, seconds in times)
