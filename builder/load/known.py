"""The names that the files of a project declare, gathered before any file is checked.

A file refers to what others declare. With the names at hand each file is checked by itself, and
one broken file does not make faults in the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from builder.load.document import Node
from builder.load.faults import Faults
from builder.model import AXES


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """Declared names. None, or an axis that is not there: no file says, or none can be read."""

    recipes: tuple[str, ...] | None
    bases: tuple[str, ...] | None
    checks: tuple[str, ...] | None
    axes: Mapping[str, tuple[str, ...]]

    def values(self, axis: str) -> tuple[str, ...] | None:
        """The values of an axis, or of `recipe`; None if they are not known."""
        return self.recipes if axis == "recipe" else self.axes.get(axis)


def declared_names(documents: Mapping[str, Node | None], key: str) -> tuple[str, ...] | None:
    """What the files call themselves under `key`, and what they are called.

    Where the two differ there is a fault already, and a reference to either is none besides.
    """
    names: dict[str, None] = {}
    for file, document in documents.items():
        node = _entry(document, key)
        if node and isinstance(node.value, str):
            names[node.value] = None
        names[PurePosixPath(file).stem] = None
    return tuple(names) or None


def declared_checks(document: Node | None) -> tuple[str, ...] | None:
    """The names of the checks in `checks.yaml`."""
    checks = _entry(document, "checks")
    return tuple(checks.value) if checks and isinstance(checks.value, Mapping) else None


def declared_axes(document: Node | None) -> dict[str, tuple[str, ...]]:
    """The values of each axis in `matrix.yaml`, as they are spelled there."""
    axes = _entry(document, "axes")
    found: dict[str, tuple[str, ...]] = {}
    for axis in AXES:
        node = _entry(axes, axis)
        if node and isinstance(node.value, tuple):
            found[axis] = tuple(item.text for item in node.value)
    return found


def check_names(documents: Mapping[str, Node | None], key: str, faults: Faults) -> None:
    """Note files that are not called after what they declare, and names declared twice."""
    owners: dict[str, str] = {}
    for file, document in documents.items():
        node = _entry(document, key)
        if node is None or not isinstance(node.value, str):
            continue
        _check_stem(PurePosixPath(file), node, key, faults)
        owner = owners.setdefault(node.value, file)
        if owner != file:
            faults.add(node.where, f'the {key} "{node.value}" is declared in {owner} already')


def _check_stem(path: PurePosixPath, node: Node, key: str, faults: Faults) -> None:
    if node.value != path.stem:
        faults.add(
            node.where,
            f'the file {path.name} declares the {key} "{node.value}"',
            f"write {key}: {path.stem}, or call the file {node.value}{path.suffix}",
        )


def _entry(node: Node | None, key: str) -> Node | None:
    return node.value.get(key) if node and isinstance(node.value, Mapping) else None
