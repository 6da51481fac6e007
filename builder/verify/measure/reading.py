"""What the readers of output share."""

from __future__ import annotations

import math


class Unreadable(Exception):
    """A program printed something else than its figures."""


def number(text: object, name: str) -> float:
    """A figure, which has to be above zero; raises `Unreadable`."""
    try:
        found = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise Unreadable(f"it gives no {name}: {str(text)[:40]!r}") from None
    if not math.isfinite(found) or found <= 0:
        raise Unreadable(f"its {name} is {text}")
    return found
