"""JSON Schemas of the input files, derived from the functions that read them."""

from __future__ import annotations

from collections.abc import Callable

from builder.load.bases import read_base
from builder.load.checks import read_checks
from builder.load.document import Faults, Node, Probe
from builder.load.matrix import read_matrix
from builder.load.patterns import ANY, Known, patterns_of
from builder.load.recipes import WHEN, read_recipe
from builder.load.site import site_of
from builder.model import SELECTABLE, Where

_ANY = Known(recipes=None, bases=None, checks=None, axes={})

_READERS: dict[str, Callable[[Node, Faults], object]] = {
    "recipe": lambda node, faults: read_recipe(node, _ANY, faults),
    "base": read_base,
    "matrix": lambda node, faults: read_matrix(node, _ANY, faults),
    "checks": lambda node, faults: read_checks(node, None, faults),
    "site": site_of,
}
KINDS = tuple(_READERS)


def file_schema(kind: str) -> dict[str, object]:
    """Return the schema of one of the `KINDS` of file; it covers only the structure.

    It refers to the blocks of recipes as `#/definitions/block`, and does not contain them.
    """
    return learnt(_READERS[kind])


def when_schema() -> tuple[str, dict[str, object]]:
    """Return the key of a block's condition, and the schema of its value."""
    return WHEN, learnt(patterns_of(SELECTABLE, _ANY, here=ANY))


def learnt(reader: Callable[[Node, Faults], object]) -> dict[str, object]:
    """Return the JSON Schema of the values that a reader accepts, found with a probe."""
    probe = Probe(where=Where(file="", line=1), value="")
    reader(probe, Faults())
    return probe.schema
