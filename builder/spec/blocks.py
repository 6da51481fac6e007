"""Which blocks a recipe can use, and every fault of a use that can be known."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence

import hpccm.building_blocks
import hpccm.primitives

from builder.errors import Fault
from builder.model import BlockUse, PlannedImage
from builder.spec import arguments as known
from builder.spec.limits import limit_faults
from builder.spec.pip import pip
from builder.spec.registered import registered_block, registered_names
from builder.spec.rules import rule_faults, type_faults

PRIMITIVES = ("comment", "copy", "environment", "label", "raw", "shell", "user", "workdir")
# They stand for the blocks of a cell's route, which the plan puts in their place.
TOOLKITS = ("cuda", "mpi")


@functools.cache
def catalogue() -> dict[str, type]:
    """The blocks and primitives that every recipe can name."""
    blocks = {
        name: value
        for name, value in vars(hpccm.building_blocks).items()
        if inspect.isclass(value) and not name.startswith("_")
    }
    blocks.update({name: getattr(hpccm.primitives, name) for name in PRIMITIVES})
    blocks["pip"] = pip
    return dict(sorted(blocks.items()))


def block_class(name: str) -> type | None:
    """The class of a block: hpccm's, or one that an installed package registers."""
    return catalogue().get(name) or registered_block(name)


def block_faults(use: BlockUse) -> list[Fault]:
    """What is wrong with a block of a recipe, before its templates are rendered.

    An unknown block or argument, a value of another type than the argument's, a version that is
    left to hpccm, and what only one of the two formats would have.
    """
    if use.name in TOOLKITS:
        return []
    cls = block_class(use.name)
    if cls is None:
        names = sorted({*catalogue(), *TOOLKITS, *registered_names()})
        return [_unknown(use, use.name, "block", names, use.where.line)]
    unknown = _unknown_arguments(use, cls)
    strange = {fault.key for fault in unknown}
    more = [*type_faults(use, cls, rendered=False), *rule_faults(use, cls)]
    return [*unknown, *(fault for fault in more if fault.key not in strange)]


def rendered_faults(use: BlockUse, image: PlannedImage) -> list[Fault]:
    """What is wrong with a block of one cell: types after rendering, and where it works."""
    cls = block_class(use.name)
    if cls is None:
        return block_faults(use)
    limits = limit_faults(use, image.cell.arch, image.base.hpccm_distro, image.base.distribution)
    return [*type_faults(use, cls, rendered=True), *limits]


def arguments(name: str) -> frozenset[str]:
    """The names of the arguments that a block takes."""
    return known.names(catalogue()[name])


def _unknown_arguments(use: BlockUse, cls: type) -> list[Fault]:
    if set(use.arguments) <= known.documented(cls).keys():
        return []
    names = known.names(cls)
    return [
        _unknown(use, argument, f"argument of {use.name}", sorted(names), line)
        for argument in use.arguments
        for line in [use.lines.get(argument, use.where.line)]
        if argument not in names and not known.is_feature(cls, argument)
    ]


def _unknown(use: BlockUse, name: str, what: str, valid: Sequence[str], line: int) -> Fault:
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

    close = get_close_matches(name, valid, n=1)
    guess = f'; did you mean "{close[0]}"?' if close else ""
    key = use.where.key if name == use.name else f"{use.where.key}.{name}"
    return Fault(
        file=use.where.file,
        line=line,
        key=key,
        problem=f'unknown {what} "{name}"{guess}',
        valid=f"valid: {', '.join(valid)}",
    )
