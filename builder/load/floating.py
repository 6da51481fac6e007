"""`tags` of `matrix.yaml`: tags that move, such as `latest`, and the cell that each means today."""

from __future__ import annotations

import re

from builder.load.document import Node, key_node, note
from builder.load.faults import Faults, suggest
from builder.load.known import Known
from builder.load.readers import Reader, Table, mapping, one_of, text
from builder.model import NONE, FloatingTag

# https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pulling-manifests
_TAG = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_TAG_RULE = "valid: at most 128 letters, digits and _ . - of which the first is no . and no -"


def floating_tags(known: Known) -> Reader[tuple[FloatingTag, ...]]:
    """A reader of a mapping: recipe, then tag, then the values of the cell's axes."""
    recipe = one_of(known.recipes, "recipe")
    tag = _tag_of(known)

    def read(node: Node, faults: Faults) -> tuple[FloatingTag, ...]:
        found: list[FloatingTag] = []
        for name, tags in (mapping(node, faults) or {}).items():
            recipe(key_node(name, tags), faults)
            for floating, cell in (mapping(tags, faults) or {}).items():
                tag(key_node(floating, cell), faults)
                found.append(_cell(name, floating, cell, known, faults))
        return tuple(found)

    return read


def _tag_of(known: Known) -> Reader[str]:
    def read(node: Node, faults: Faults) -> str:
        value = text(node, faults)
        note(node, pattern=f"^{_TAG}$")
        if not value:
            return value
        own = [base for base in known.bases or () if f"-{base}" in value]
        if not re.fullmatch(_TAG, value):
            faults.add(node.where, f'"{value}" cannot be a tag', _TAG_RULE)
        elif own or value.startswith("sha256-"):
            whose = f"a cell of {own[0]}" if own else "proof"
            faults.add(node.where, f'"{value}" could be the own tag of {whose}', "choose another")
        return value

    return read


def _cell(recipe: str, tag: str, node: Node, known: Known, faults: Faults) -> FloatingTag:
    table = Table(node, faults, required=("base",), optional=("cuda", "mpi"))

    def value(axis: str) -> str:
        return table.read(axis, _value_of(axis, known), NONE)

    return FloatingTag(
        recipe=recipe,
        tag=tag,
        base=value("base"),
        cuda=value("cuda"),
        mpi=value("mpi"),
        where=table.where,
    )


def _value_of(axis: str, known: Known) -> Reader[str]:
    values = known.values(axis)

    def read(node: Node, faults: Faults) -> str:
        found = text(node, faults)
        if found and values is not None and found not in values:
            problem = f'"{found}" is no value of the axis {axis}'
            faults.add(node.where, problem, suggest(found, values))
        return found

    return read
