"""Shell text as the rules read it: one command at a time, with its line."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

# What a line of a spec is for. `HOST` runs on the building host, not in the image.
SHELL, ENVIRONMENT, COPY, SOURCE, LABEL, SCRIPT, HOST, OTHER = (
    "shell",
    "environment",
    "copy",
    "source",
    "label",
    "script",
    "host",
    "other",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One command, or one line of another kind.

    `text` has single blanks and no continuation lines. `layer` numbers what ends in one layer:
    a RUN instruction, or a stage of a definition. `chained` says that `&&` follows.
    """

    file: str
    line: int
    text: str
    kind: str
    stage: int
    final: bool
    layer: int
    chained: bool = False


Line = tuple[int, str]


def logical_lines(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Lines joined where a backslash continues them; comments and empty lines are left out."""
    joined: list[Line] = []
    for number, raw in lines:
        text = raw.strip()
        if not text or text.startswith("#"):
            continue
        joined.append((number, text.removesuffix("\\").rstrip()))
        if not text.endswith("\\"):
            yield joined
            joined = []
    if joined:
        yield joined


def parts(lines: Sequence[Line]) -> Iterator[tuple[int, str, bool]]:
    """The commands of one logical line, cut at `&&`: line, text, and whether `&&` follows."""
    words: list[str] = []
    begin = lines[0][0]
    for number, text in lines:
        for word in text.split():
            if word == "&&":
                yield begin, " ".join(words), True
                words = []
                continue
            if not words:
                begin = number
            words.append(word)
    if words:
        yield begin, " ".join(words), False


@lru_cache(maxsize=1 << 14)
def words_of(text: str) -> tuple[str, ...]:
    """Words as a shell splits them; at blanks alone where the quotes are not closed."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())
