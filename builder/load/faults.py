"""The collector of faults, and the words in which they offer what would be valid."""

from __future__ import annotations

from collections.abc import Iterable

from builder.facts.places import Where
from builder.model.errors import Fault

_NEAR = 0.8  # of 1.0: of five letters one is another, of six two changed places
_OTHER_LETTERS = 2


class Faults:
    """Every fault found so far, in all files: reading goes on after each of them."""

    def __init__(self) -> None:
        self.found: list[Fault] = []

    def add(self, where: Where, problem: str, valid: str = "") -> None:
        """Note that something is wrong at `where`; `valid` says what would be accepted."""
        self.found.append(
            Fault(file=where.file, line=where.line, key=where.key, problem=problem, valid=valid)
        )


def is_near(word: str, names: Iterable[str]) -> bool:
    """Return whether a word is one of some names but for a slip of the pen."""
    import difflib  # noqa: PLC0415 - as below

    alike = [name for name in names if abs(len(name) - len(word)) <= _OTHER_LETTERS]
    return bool(difflib.get_close_matches(word, alike, n=1, cutoff=_NEAR))


def suggest(word: str, names: Iterable[str]) -> str:
    """Return advice for `word`: the nearest of `names`, if one is near, and all of them."""
    import difflib  # noqa: PLC0415 - only a fault needs it: a good project loads without

    known = list(names)
    near = difflib.get_close_matches(word, known, n=1)
    listed = f"valid: {', '.join(known)}" if known else "there is none yet"
    return f'did you mean "{near[0]}"? {listed}' if near else listed
