"""Mutations are of what runs, each is valid Python, and no two are the same."""

from __future__ import annotations

import ast

from mutations import mutations
from samples import ROOT

SOURCE = b'''\
"""A docstring."""
from typing import TYPE_CHECKING
__all__ = ["f"]
if TYPE_CHECKING:
    A = 1


@decorated(slots=True)
def f(x: "int", *, deep: bool = False) -> "str | None":
    """Another."""
    if x > 3 and not deep:
        return "many"
    kept = [y for y in range(x) if y]
    return None if kept else f"few {x + 1}"
'''


def test_every_kind_is_there_and_nothing_else() -> None:
    texts = [one.describe(SOURCE) for one in mutations(SOURCE)]
    assert texts == [
        "constant: False -> True",
        "negated: x > 3 and not deep -> (not (x > 3 and not deep))",
        "operator: and -> or",
        "operator: > -> >=",
        "constant: 3 -> (3 + 1)",
        "not left out: not deep -> (deep)",
        'returned: "many" -> None',
        'constant: "many" -> ("XX" + "many")',
        "negated: y -> (not (y))",
        'returned: None if kept else f"few {x + 1}" -> None',
        "negated: kept -> (not (kept))",
    ]


def test_each_changes_the_source_into_other_valid_python() -> None:
    source = (ROOT / "builder/locks.py").read_bytes()
    before = ast.dump(ast.parse(source))
    assert len(mutations(source)) > 10
    for mutation in mutations(source):
        changed = ast.dump(ast.parse(mutation.apply(source)))
        assert changed != before, mutation.describe(source)
        assert mutation.lines
