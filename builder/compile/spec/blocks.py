"""Which blocks a recipe can use, and every fault of a use that can be known."""

from __future__ import annotations

from collections.abc import Sequence

from builder.compile.spec import catalogue
from builder.compile.spec.kinds import Block
from builder.compile.spec.limits import limit_faults
from builder.compile.spec.registered import registered_names
from builder.compile.spec.rules import NOT_FOR_RECIPES, rule_faults, type_faults
from builder.model import TOOLKITS, BlockUse, PlannedImage
from builder.model.errors import Fault


def block_faults(use: BlockUse) -> list[Fault]:
    """What is wrong with a block of a recipe, before its templates are rendered.

    An unknown block or argument, a value of another type than the argument's, a version that is
    left to hpccm, and what only one of the two formats would have.
    """
    if use.name in TOOLKITS:
        return []
    block = catalogue.block(use.name)
    if block is None:
        usable = {*catalogue.names()} - NOT_FOR_RECIPES.keys()
        names = sorted({*usable, *TOOLKITS, *registered_names()})
        return [_unknown(use, use.name, "block", names, use.where.line)]
    unknown = _unknown_arguments(use, block)
    strange = {fault.key for fault in unknown}
    more = [*type_faults(use, block, rendered=False), *rule_faults(use, block)]
    return [*unknown, *(fault for fault in more if fault.key not in strange)]


def rendered_faults(use: BlockUse, image: PlannedImage) -> list[Fault]:
    """What is wrong with a block of one cell: types after rendering, and where it works."""
    block = catalogue.block(use.name)
    if block is None:
        return block_faults(use)
    limits = limit_faults(use, image.cell.arch, image.base.hpccm_distro, image.base.distribution)
    return [*type_faults(use, block, rendered=True), *limits]


def _unknown_arguments(use: BlockUse, block: Block) -> list[Fault]:
    return [
        _unknown(use, argument, f"argument of {use.name}", sorted(block.kinds), line)
        for argument in use.arguments
        for line in [use.lines.get(argument, use.where.line)]
        if not block.takes(argument)
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
