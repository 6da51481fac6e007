"""Cases of a campaign against verification: planted defects, and sound images that look odd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One image. `faults` makes it in an empty folder, and returns what verification says of it.

    `named` is a pattern of what has to be said; empty for an image that is sound.
    """

    family: str
    name: str
    faults: Callable[[Path], Sequence[str]]
    named: str = ""
