"""Patterns over axis values: in `exclude`, `when`, `default` and the `axes` of recipes.

A condition may name a value that this project's axes do not have and another project's may have:
then it matches no cell here. A name that cannot exist in any project is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from builder import facts
from builder.load.document import Faults, Node, Probe, is_near, note, suggest
from builder.load.readers import Reader, mapping, one_or_more, text
from builder.model import AXES, cells, versions
from builder.model.architectures import architecture

_VERSION = re.compile(r"[\d.*?]*$")
_VERSIONS = re.compile(r"none|\d+(\.\d+)*(\.?\*)?")
EACH, ONE, ANY = "each", "one", "any"


def patterns_of(
    axes: Sequence[str], known: Known, *, here: str
) -> Reader[dict[str, tuple[str, ...]]]:
    """Return a reader of a mapping from some of `axes` to one pattern or a list of patterns.

    `here` says how many patterns of a list must select a value of this project: `EACH`, `ONE` (at
    least one), or `ANY` number, also none.
    """

    def read(node: Node, faults: Faults) -> dict[str, tuple[str, ...]]:
        patterns: dict[str, tuple[str, ...]] = {}
        if isinstance(node, Probe):
            one_or_more(text)(child := node.child(), faults)
            properties = {
                axis: {"description": f"patterns of the axis {axis}", **child.schema}
                for axis in axes
            }
            note(node, type="object", properties=properties, additionalProperties=False)
            return patterns
        for axis, entry in (mapping(node, faults) or {}).items():
            if axis in axes:
                patterns[axis] = one_or_more(_pattern_of(axis, known, here))(entry, faults)
                if here == ONE:
                    _check_some(entry, axis, patterns[axis], known, faults)
            else:
                faults.add(entry.where, f'unknown axis: "{axis}"', suggest(axis, axes))
        return patterns

    return read


def _check_some(
    node: Node, axis: str, patterns: Sequence[str], known: Known, faults: Faults
) -> None:
    """Report a list of patterns if none selects a value here, though each may in other projects."""
    values = known.values(axis)
    if values is None or any(_selects(axis, pattern, values) for pattern in patterns):
        return
    if patterns and all(_is_elsewhere(axis, pattern, known) for pattern in patterns):
        items = node.value if isinstance(node.value, tuple) else (node,)
        listed = ", ".join(f'"{item.text}"' for item in items)
        problem = f"{listed} matches no value of the axis {axis}"
        faults.add(node.where, problem, suggest(patterns[0], values))


def _pattern_of(axis: str, known: Known, here: str) -> Reader[str]:
    values = known.values(axis)

    def read(node: Node, faults: Faults) -> str:
        pattern = text(node, faults)
        specified = versions.split_specifier(pattern) if axis in {"cuda", "mpi"} else None
        if specified:  # it may match no value of the axis today, and a later value
            if not versions.is_specifier(specified[1]):
                valid = 'valid: PEP 440 version specifiers, such as ">=11,<13"'
                faults.add(node.where, f'"{specified[1]}" is not a version specifier', valid)
        elif (
            pattern
            and values is not None
            and not _selects(axis, pattern, values)
            and (here == EACH or not _is_elsewhere(axis, pattern, known))
        ):
            problem = f'"{pattern}" matches no value of the axis {axis}'
            families = [versions.split_mpi(value)[0] for value in values if axis == "mpi"]
            faults.add(node.where, problem, suggest(pattern, dict.fromkeys([*families, *values])))
        arch = architecture(pattern) if axis == "arch" else None
        return arch.name if arch else pattern

    return read


def _selects(axis: str, pattern: str, values: Sequence[str]) -> bool:
    return any(versions.matches(axis, pattern, value) for value in values)


def _is_elsewhere(axis: str, pattern: str, known: Known) -> bool:
    """Return whether a pattern without a match here is valid in other projects, not misspelled."""
    if axis == "arch":
        return architecture(pattern) is not None
    if axis == "base":
        here = {_distribution(name) for name in (*(known.bases or ()), *(known.values(axis) or ()))}
        other = _distribution(pattern)
        return other in here or not is_near(other, here)
    if axis == "cuda":
        return _VERSIONS.fullmatch(pattern) is not None
    if axis == "mpi":
        family = versions.split_mpi(pattern)[0] or pattern
        return family.rstrip("*-") in {cells.NONE, *facts.MPI_FAMILIES}
    return not is_near(pattern, known.recipes or ())


def _distribution(base: str) -> str:
    """Return a base name or pattern without its version: `debian` for `debian13` and `debian*`."""
    return _VERSION.sub("", base)


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """Names that the project declares. None, or a missing axis, means that they are not known.

    `axes` has the project's values, `every` also those that a lower layer has on the same axis.
    """

    recipes: tuple[str, ...] | None
    bases: tuple[str, ...] | None
    checks: tuple[str, ...] | None
    axes: Mapping[str, tuple[str, ...]]
    every: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of_all_layers(self) -> Known:
        """Return these names, with the values that an axis has in any layer."""
        return replace(self, axes={**self.axes, **self.every})

    def values(self, axis: str) -> tuple[str, ...] | None:
        """Return the values of an axis, or the names of the recipes; None if they are not known."""
        return self.recipes if axis == "recipe" else self.axes.get(axis)


def declared_names(documents: Mapping[str, Node | None], key: str) -> tuple[str, ...] | None:
    """Return the names that files declare under `key`, and the names of the files.

    If the two differ, `check_names` reports it; a reference to either is not a second fault.
    """
    names: dict[str, None] = {}
    for file, document in documents.items():
        node = _entry(document, key)
        if node and isinstance(node.value, str):
            names[node.value] = None
        names[PurePosixPath(file).stem] = None
    return tuple(names) or None


def declared_checks(document: Node | None) -> tuple[str, ...] | None:
    """Return the names of the checks in `checks.yaml`."""
    checks = _entry(document, "checks")
    return tuple(checks.value) if checks and isinstance(checks.value, Mapping) else None


def declared_axes(document: Node | None) -> dict[str, tuple[str, ...]]:
    """Return the values of each axis in `matrix.yaml`, as written there."""
    axes = _entry(document, "axes")
    values: dict[str, tuple[str, ...]] = {}
    for axis in AXES:
        node = _entry(axes, axis)
        if node and isinstance(node.value, tuple):
            values[axis] = tuple(item.text for item in node.value)
    return values


def check_names(documents: Mapping[str, Node | None], key: str, faults: Faults) -> None:
    """Report files whose name differs from the declared name, and names declared twice."""
    owners: dict[str, str] = {}
    for file, document in documents.items():
        node = _entry(document, key)
        if node is None or not isinstance(node.value, str):
            continue
        _check_stem(PurePosixPath(file), node, key, faults)
        owner = owners.setdefault(node.value, file)
        if owner != file:
            faults.add(node.where, f'the {key} "{node.value}" is already declared in {owner}')


def _check_stem(path: PurePosixPath, node: Node, key: str, faults: Faults) -> None:
    if node.value != path.stem:
        faults.add(
            node.where,
            f'the file {path.name} declares the {key} "{node.value}"',
            f"write {key}: {path.stem}, or rename the file to {node.value}{path.suffix}",
        )


def _entry(node: Node | None, key: str) -> Node | None:
    return node.value.get(key) if node and isinstance(node.value, Mapping) else None
