"""Read other programs' JSON strictly, so that all readers get the same values.

Of a key that is there twice one reader takes the first and another the last, so that one could be
checked and the other be used. NaN and infinities are no JSON, however they are written. How many
values a text holds is counted before it is read: one of three letters takes 80 bytes of memory.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MOST_VALUES = 200_000  # of a manifest, a configuration or a list; the largest have some thousand


def parsed(text: bytes | str, *, most: int | None = MOST_VALUES) -> Any:
    """Return the value of a JSON text in UTF-8, with a limit on the number of values.

    Raises `ValueError` for what is none, holds a key twice, NaN, an infinity or a number that is
    too large (1e999), or is nested too deeply. Commas and brackets count, also those within texts.
    """
    decoded = text.decode() if isinstance(text, bytes) else text
    if most is not None and 1 + sum(map(decoded.count, ",[{")) > most:
        raise ValueError(f"it holds more than {most} values")
    try:
        return json.loads(
            decoded, object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def member(value: Any, *path: str | int) -> Any:
    """Return the value at a path of keys and indices; raises `LookupError` or `TypeError`."""
    for key in path:
        value = value[key]
    return value


def part(value: object, *keys: str) -> Any:
    """Return the value below some keys; None if the path does not exist."""
    inner: Any = value
    for key in keys:
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner


def time_of(text: object) -> dt.datetime:
    """Read a time in ISO 8601 with its zone; raises `ValueError`."""
    time = dt.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    if time.tzinfo is None:
        raise ValueError(f"the time {text} has no zone")
    try:
        return time.astimezone(dt.timezone.utc)
    except OverflowError as error:
        raise ValueError(f"the time {text} is before the year 1 or after 9999") from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate key")
    return members


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large a number")
    return number


JsonObject = Mapping[str, str | Mapping[str, object] | Iterable[object]]


def streamed(document: JsonObject) -> Iterator[str]:
    """Yield the text of an object of texts, objects and lists, a line for each entry of a list.

    The entries of a list are made one after the other, so thousands take no memory.
    """
    before = "{"
    for name, value in document.items():
        yield f"{before}\n{json.dumps(name)}: "
        if isinstance(value, str | Mapping):
            yield json.dumps(value)
        else:
            yield "["
            for number, entry in enumerate(value):
                yield f"{',' if number else ''}\n {json.dumps(entry)}"
            yield "\n]"
        before = ","
    yield "\n}\n"
