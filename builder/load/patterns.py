"""Patterns over axis values: `exclude`, `default`, and what a recipe narrows."""

from __future__ import annotations

from collections.abc import Sequence

from builder import facts, versions
from builder.load.document import Node, Probe, note
from builder.load.faults import Faults, suggest
from builder.load.known import Known
from builder.load.readers import Reader, mapping, one_or_more, text


def patterns_of(axes: Sequence[str], known: Known) -> Reader[dict[str, tuple[str, ...]]]:
    """A reader of a mapping from some of `axes` to one pattern or a list of them."""

    def read(node: Node, faults: Faults) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        if isinstance(node, Probe):
            one_or_more(text)(child := node.child(), faults)
            properties = dict.fromkeys(axes, child.schema)
            note(node, type="object", properties=properties, additionalProperties=False)
            return found
        for axis, entry in (mapping(node, faults) or {}).items():
            if axis in axes:
                found[axis] = one_or_more(_pattern_of(axis, known))(entry, faults)
            else:
                faults.add(entry.where, f'there is no axis "{axis}"', suggest(axis, axes))
        return found

    return read


def _pattern_of(axis: str, known: Known) -> Reader[str]:
    values = known.values(axis)

    def read(node: Node, faults: Faults) -> str:
        pattern = text(node, faults)
        specified = versions.split_specifier(pattern) if axis in {"cuda", "mpi"} else None
        if specified:
            _check_specifier(node, specified[1], faults)
        elif pattern and values is not None and not _selects(axis, pattern, values):
            problem = f'"{pattern}" matches no value of the axis {axis}'
            faults.add(node.where, problem, suggest(pattern, values))
        arch = facts.architecture(pattern) if axis == "arch" else None
        return arch.name if arch else pattern

    return read


def _check_specifier(node: Node, specifier: str, faults: Faults) -> None:
    """Note one that is none; one that meets no value of today's axis may meet one of tomorrow's."""
    if not versions.is_specifier(specifier):
        valid = 'valid: PEP 440 version specifiers, such as ">=11,<13"'
        faults.add(node.where, f'"{specifier}" is not a version specifier', valid)


def _selects(axis: str, pattern: str, values: Sequence[str]) -> bool:
    return any(versions.matches(axis, pattern, value) for value in values)
