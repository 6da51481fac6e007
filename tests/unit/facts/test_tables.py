"""The tables of facts, entry by entry: a change of one is a change of a file beside its source."""

from __future__ import annotations

import importlib
import pkgutil
import pprint
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from samples import compare_with_golden

from builder import facts

MODULES = (
    "builder.model.architectures",
    *sorted(f"builder.facts.{module.name}" for module in pkgutil.iter_modules(facts.__path__)),
)
_TABLE = re.compile(r"[A-Z][A-Z0-9_]*")


@pytest.mark.parametrize("name", MODULES)
def test_no_entry_changes_unseen(name: str) -> None:
    module = importlib.import_module(name)
    tables = {key: value for key, value in vars(module).items() if _TABLE.fullmatch(key)}
    lines = [f"{key} = {_text(value)}" for key, value in sorted(tables.items())]
    if lines:
        compare_with_golden("\n".join([*lines, ""]), f"facts/{name.rpartition('.')[2]}.txt")


def _text(value: object) -> str:
    return pprint.pformat(_plain(value), width=100)


def _plain(value: Any) -> Any:
    """A value of plain types; sets are sorted, so that they read the same in each run."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value))
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.pattern if isinstance(value, re.Pattern) else value
