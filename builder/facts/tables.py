"""Tables in YAML: the place of a row, and the tables of data/*.yaml that no project adds to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """A place in an input file: `file` is relative to the project's root, `key` a key path."""

    file: str
    line: int
    key: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def rows(file: str, table: str, record: Callable[..., Row]) -> tuple[Row, ...]:
    """Return a table of data/FILE.yaml as records, with tuples for lists.

    Raises `TypeError` for a row with an unknown field, or without a needed one.
    """
    return tuple(
        record(
            **{key: tuple(cell) if isinstance(cell, list) else cell for key, cell in row.items()}
        )
        for row in _tables(file)[table]
    )


@functools.cache
def _tables(file: str) -> Mapping[str, Sequence[Mapping[str, object]]]:
    path = Path(__file__).parent / "data" / f"{file}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    tables = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - it is safe
    assert isinstance(tables, dict)
    return tables
