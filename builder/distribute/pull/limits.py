"""Limits for reading an image before it is refused: an image may be a bomb."""

from __future__ import annotations

from dataclasses import dataclass

from builder.model.errors import Refused


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds for one image. Sizes are in bytes, `ratio` is plain bytes to one packed byte.

    The largest images of frameworks have half a million paths and 40 GB. Whatever is smaller than
    `small` may have any ratio: a file of zeros is packed to a thousandth.
    """

    entries: int = 2_000_000
    plain: int = 1 << 40
    ratio: int = 200
    small: int = 1 << 30
    header: int = 1 << 20  # of an extended header: paths, attributes
    path: int = 4096  # bytes; PATH_MAX of Linux
    name: int = 255  # bytes; NAME_MAX
    depth: int = 200
    layers: int = 1000

    def check_entries(self, number: int) -> None:
        """Raise `Refused` for more entries than an image has."""
        if number > self.entries:
            raise Refused(f"this looks like a bomb: more than {self.entries:,} entries")


LIMITS = Limits()
