"""Colours of the terminal, as ANSI writes them."""

from __future__ import annotations

GREEN, RED, YELLOW, DIM, BOLD = "32", "31", "33", "2", "1"


class Paint:
    """Puts the terminal's colours around a text, or leaves it as it is."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text
