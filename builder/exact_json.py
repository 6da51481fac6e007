"""JSON of somebody else's that all readers understand alike.

Of a key that is there twice one reader takes the first and another the last, so that one could be
checked and the other be used. NaN and infinities are no JSON, however they are written.
"""

from __future__ import annotations

import json
import math
from typing import Any


def parsed(text: bytes | str) -> Any:
    """The value of a JSON text in UTF-8.

    Raises `ValueError` for what is none, holds a key twice, NaN, an infinity or a number that is
    too large (1e999), or is nested too deeply.
    """
    decoded = text.decode() if isinstance(text, bytes) else text
    try:
        return json.loads(
            decoded, object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError(f"{text} is too large a number")
    return found
