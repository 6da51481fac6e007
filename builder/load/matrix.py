"""`matrix.yaml`: the axes, what is excluded, the default selection."""

from __future__ import annotations

from collections.abc import Collection

from builder import facts
from builder.facts import versions
from builder.load.document import Node
from builder.load.faults import Faults, suggest
from builder.load.floating import floating_tags
from builder.load.known import Known
from builder.load.patterns import ANY, EACH, patterns_of
from builder.load.readers import (
    Reader,
    Table,
    architecture,
    is_version,
    list_of,
    one_of,
    text,
    version,
)
from builder.model import AXES, NONE, SELECTABLE, Exclude, Matrix

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
