"""Tables of facts that no project adds to: rows of data/*.yaml, read into records."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import yaml

Row = TypeVar("Row")


def rows(file: str, table: str, record: Callable[..., Row]) -> tuple[Row, ...]:
    """Return a table of data/FILE.yaml as records, with tuples for lists.

    Raises `TypeError` for a row with an unknown field, or without a needed one.
    """
    return tuple(
        record(**{name: _frozen(value) for name, value in row.items()})
        for row in _tables(file)[table]
    )


@functools.cache
def _tables(file: str) -> Mapping[str, Sequence[Mapping[str, object]]]:
    path = Path(__file__).parent / "data" / f"{file}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    tables = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - it is safe
    assert isinstance(tables, dict)
    return tables


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
