"""Read `matrix.yaml`: the axes, the excluded cells, the default selection."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from builder import facts
from builder.load.document import Faults, Node, note, suggest
from builder.load.patterns import ANY, EACH, Known, patterns_of
from builder.load.readers import (
    Reader,
    architecture,
    described,
    is_version,
    keyed,
    list_of,
    one_of,
    record,
    text,
    version,
)
from builder.load.record_readers import truth
from builder.load.site import INHERIT
from builder.model import AXES, NONE, SELECTABLE, Exclude, FloatingTag, Matrix, Where, versions

NO_AXES: Mapping[str, tuple[str, ...]] = MappingProxyType({})
_WHOLE: Mapping[str, object] = {  # for the schema: without inheritance there is every axis
    "if": {"properties": {INHERIT: {"const": False}}, "required": [INHERIT]},
    "then": {"properties": {"axes": {"required": [*AXES]}}, "required": ["axes"]},
}
_CUDA_RULE = "a project can add releases in facts/cuda.yaml (docs/matrix.md)"
_MPI_RULE = "write a family and its version, such as openmpi5.0, or none"


def read_matrix(
    node: Node,
    known: Known,
    faults: Faults,
    releases: Collection[str] = (),
    *,
    is_whole: bool = False,
) -> Matrix:
    """Return what one file declares; its bases, axes and patterns must refer to known names.

    `releases` are the CUDA releases in the fact tables; empty if the tables cannot be read. A
    matrix that `is_whole`, since it inherits nothing, has all axes.
    """
    axes: dict[str, Reader[str]] = {
        "arch": architecture,
        "base": one_of(known.bases, "base image"),
        "cuda": _cuda(releases),
        "mpi": _mpi,
    }
    wide = known.of_all_layers()
    exclude = record(
        Exclude,
        {
            "when": described(
                "a cell is left out if each of these matches",
                _not_empty(patterns_of(SELECTABLE, wide, here=ANY)),
            ),
            "reason": described("the text that explain shows", text),
        },
        placed=True,
    )
    lists = {
        axis: described(
            f"the values of the axis {axis}", list_of(axes[axis], least=1, distinct=True)
        )
        for axis in AXES
    }
    kind = dict[str, tuple[str, ...]]
    words = "the axes; one that is not named is inherited"
    every_axis = {"axes": described(words, record(kind, lists))} if is_whole else {}
    read = record(
        functools.partial(_matrix, where=node.where),
        every_axis,
        {
            **({} if is_whole else {"axes": described(words, record(kind, {}, lists))}),
            "exclude": described("the cells that are left out, with reasons", list_of(exclude)),
            "default": described(
                "the selection without selectors", patterns_of(SELECTABLE, known, here=EACH)
            ),
            "tags": described("floating tags, by recipe and name", _floating_tags(known)),
            INHERIT: described("false: inherit nothing of the shipped project", truth),
        },
        fields={"exclude": "excludes", INHERIT: ""},
    )
    note(node, **_WHOLE)
    return read(node, faults)


def _matrix(
    *, where: Where, axes: Mapping[str, tuple[str, ...]] = NO_AXES, **parts: object
) -> Matrix:
    kind: Callable[..., Matrix] = Matrix
    return kind(axes=axes, where=where, files=dict.fromkeys(axes, where.file), **parts)


def over(own: Matrix, below: Matrix) -> Matrix:
    """Return a matrix over the one that it inherits.

    Its axes, defaults and tags replace those of the same name, and its exclusions are added. What
    was inherited for values that the axes lack now is left out.
    """
    axes = {**below.axes, **own.axes}
    default = {
        name: fitting
        for name, patterns in below.default.items()
        for fitting in [tuple(each for each in patterns if _selects(name, each, axes))]
        if fitting
    }
    tags = {(tag.recipe, tag.tag): tag for tag in below.tags if _is_on(tag, axes)}
    return Matrix(
        axes=axes,
        where=own.where,
        excludes=(*below.excludes, *own.excludes),
        default={**default, **own.default},
        tags=tuple({**tags, **{(tag.recipe, tag.tag): tag for tag in own.tags}}.values()),
        files={**below.files, **own.files},
        inherited=below.axes,
    )


def _selects(name: str, pattern: str, axes: Mapping[str, tuple[str, ...]]) -> bool:
    """Return whether a pattern matches a value; recipes are never left out."""
    return name not in axes or any(versions.matches(name, pattern, value) for value in axes[name])


def _is_on(tag: FloatingTag, axes: Mapping[str, tuple[str, ...]]) -> bool:
    return all(getattr(tag, axis) in axes.get(axis, ()) for axis in ("base", "cuda", "mpi"))


def _cuda(releases: Collection[str]) -> Reader[str]:
    def read(node: Node, faults: Faults) -> str:
        if node.value == NONE:
            return NONE
        release = version(node, faults)
        if release and releases and release not in releases:
            major = release.partition(".")[0]
            same = [other for other in releases if other.partition(".")[0] == major]
            near = f"valid: {', '.join(same)}" if same else suggest(release, releases)
            faults.add(node.where, f"unknown CUDA release: {release}", f"{near}; {_CUDA_RULE}")
        return release

    return read


def _mpi(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if not value or value == NONE:
        return value
    family, number = versions.split_mpi(value)
    if family not in facts.MPI_FAMILIES:
        valid = suggest(family, facts.MPI_FAMILIES)
        faults.add(node.where, f'unknown MPI family in "{value}"', f"{valid}; {_MPI_RULE}")
    elif not is_version(number):
        faults.add(node.where, f'"{value}" has no valid version of {family}', _MPI_RULE)
    elif value != (right := versions.join_mpi(family, number)):
        problem = f'wrong spelling of an MPI version: "{value}"'
        faults.add(node.where, problem, f"write {right}")
    return value


def _not_empty(patterns: Reader[dict[str, tuple[str, ...]]]) -> Reader[dict[str, tuple[str, ...]]]:
    def read(node: Node, faults: Faults) -> dict[str, tuple[str, ...]]:
        if node.value == {}:
            faults.add(node.where, "this excludes every cell", "name at least one axis")
        return patterns(node, faults)

    return read


# https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pulling-manifests
_TAG = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_TAG_RULE = "valid: at most 128 letters, digits and _ . -, not beginning with . or -"


def _floating_tags(known: Known) -> Reader[tuple[FloatingTag, ...]]:
    """Return a reader of a mapping from recipes to tags to axis values of a cell."""
    base, cuda, mpi = (
        described(
            f"the value of the axis {axis}", one_of(known.values(axis), f"value of the axis {axis}")
        )
        for axis in ("base", "cuda", "mpi")
    )

    def cell_of(recipe: str, tag: str) -> Reader[FloatingTag]:
        kind = functools.partial(FloatingTag, recipe=recipe, tag=tag)
        return record(kind, {"base": base}, {"cuda": cuda, "mpi": mpi}, placed=True)

    def tags_of(recipe: str) -> Reader[tuple[FloatingTag, ...]]:
        return keyed(_tag_of(known), functools.partial(cell_of, recipe))

    read = keyed(one_of(known.recipes, "recipe"), tags_of)
    return lambda node, faults: tuple(itertools.chain(*read(node, faults)))


def _tag_of(known: Known) -> Reader[str]:
    def read(node: Node, faults: Faults) -> str:
        value = text(node, faults)
        note(node, pattern=f"^{_TAG}$")
        own = [base for base in known.bases or () if f"-{base}" in value]
        if value and not re.fullmatch(_TAG, value):
            faults.add(node.where, f'"{value}" is not a valid tag', _TAG_RULE)
        elif own or value.startswith("sha256-"):
            reserved = f"cells of {own[0]}" if own else "signatures and attestations"
            problem = f'"{value}" may collide with the tags of {reserved}'
            faults.add(node.where, problem, "choose another tag")
        return value

    return read
