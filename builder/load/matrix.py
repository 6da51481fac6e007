"""`matrix.yaml`: the axes, what is excluded, the default selection."""

from __future__ import annotations

import re
from collections.abc import Collection

from builder import facts
from builder.load.document import Node, key_node, note
from builder.load.faults import Faults, suggest
from builder.load.patterns import ANY, EACH, Known, patterns_of
from builder.load.readers import (
    Reader,
    Table,
    architecture,
    is_version,
    list_of,
    mapping,
    one_of,
    text,
    version,
)
from builder.model import AXES, NONE, SELECTABLE, Exclude, FloatingTag, Matrix, versions

_CUDA_RULE = "facts/cuda.yaml of the project may add a release (docs/matrix.md)"
_MPI_RULE = "write a family and its version, such as openmpi5.0, or none"


def read_matrix(
    node: Node, known: Known, faults: Faults, *, releases: Collection[str] = ()
) -> Matrix:
    """The matrix; every base, axis and pattern in it is checked against what exists.

    `releases` are the CUDA releases that the tables of facts know; empty if they cannot be read.
    """
    table = Table(node, faults, required=("axes",), optional=("exclude", "default", "tags"))
    return Matrix(
        axes=table.read("axes", _axes(known, releases), {}),
        excludes=table.read("exclude", list_of(_exclude(known)), ()),
        default=table.read("default", patterns_of(SELECTABLE, known, here=EACH), {}),
        where=table.where,
        tags=table.read("tags", floating_tags(known), ()),
    )


def _axes(known: Known, releases: Collection[str]) -> Reader[dict[str, tuple[str, ...]]]:
    readers: dict[str, Reader[str]] = {
        "arch": architecture,
        "base": one_of(known.bases, "base image"),
        "cuda": _cuda(releases),
        "mpi": _mpi,
    }

    def read(node: Node, faults: Faults) -> dict[str, tuple[str, ...]]:
        table = Table(node, faults, required=AXES)
        return {
            axis: table.read(axis, list_of(readers[axis], least=1, distinct=True), ())
            for axis in AXES
        }

    return read


def _cuda(releases: Collection[str]) -> Reader[str]:
    def read(node: Node, faults: Faults) -> str:
        if node.value == NONE:
            return NONE
        found = version(node, faults)
        if found and releases and found not in releases:
            problem = f"no table of facts has CUDA {found}"
            faults.add(node.where, problem, f"{_near(found, releases)}; {_CUDA_RULE}")
        return found

    return read


def _near(version: str, releases: Collection[str]) -> str:
    """The releases of the same major version, else the nearest in spelling."""
    major = version.partition(".")[0]
    same = [one for one in releases if one.partition(".")[0] == major]
    return f"there are {', '.join(same)}" if same else suggest(version, releases)


def _mpi(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if not value or value == NONE:
        return value
    family, number = versions.split_mpi(value)
    if family not in facts.MPI_FAMILIES:
        valid = suggest(family, facts.MPI_FAMILIES)
        faults.add(node.where, f'"{value}" begins with no MPI family', f"{valid}; {_MPI_RULE}")
    elif not is_version(number):
        faults.add(node.where, f'"{value}" names no version of {family}', _MPI_RULE)
    elif value != (right := versions.join_mpi(family, number)):
        problem = f'"{value}" is not how the version of {family} is written'
        faults.add(node.where, problem, f"write {right}")
    return value


def _exclude(known: Known) -> Reader[Exclude]:
    when = patterns_of(SELECTABLE, known, here=ANY)

    def read(node: Node, faults: Faults) -> Exclude:
        table = Table(node, faults, required=("when", "reason"))
        return Exclude(
            when=table.read("when", _some(when), {}),
            reason=table.read("reason", text, ""),
            where=table.where,
        )

    return read


def _some(
    patterns: Reader[dict[str, tuple[str, ...]]],
) -> Reader[dict[str, tuple[str, ...]]]:
    def read(node: Node, faults: Faults) -> dict[str, tuple[str, ...]]:
        if node.value == {}:
            faults.add(node.where, "this excludes every cell", "name at least one axis")
        return patterns(node, faults)

    return read


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
