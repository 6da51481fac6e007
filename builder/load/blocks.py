"""The entries of `development` and `runtime`: hpccm's building blocks and their arguments.

Which blocks and arguments exist, hpccm knows; whoever calls `load_project` asks it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Iterator, Mapping

from builder.load.document import Node, note, quoted
from builder.load.faults import Faults
from builder.load.known import Known
from builder.load.patterns import ANY, patterns_of
from builder.load.readers import Reader, list_of
from builder.load.templated import try_templates
from builder.model import SELECTABLE, BlockUse

WHEN = "when"
_SECTION = re.compile(r"(?m)(?<=\n)%[a-z]")  # in a later line than the first
BLOCK_SCHEMA = "#/definitions/block"  # hpccm knows the blocks: builder.compile.spec.schema has it
_SHAPE = "valid: one block and its arguments, such as gnu: {fortran: true} or gnu: {}"


def read_blocks(known: Known) -> Reader[tuple[BlockUse, ...]]:
    """A reader of a list of blocks, without those that are no block in shape."""

    def read(node: Node, faults: Faults) -> tuple[BlockUse, ...]:
        found = list_of(_block(known))(node, faults)
        return tuple(block for block in found if block is not None)

    return read


def _block(known: Known) -> Reader[BlockUse | None]:
    def read(node: Node, faults: Faults) -> BlockUse | None:
        note(node, **{"$ref": BLOCK_SCHEMA})
        if not isinstance(node.value, Mapping):
            faults.add(node.where, f"expected a block, found {node.describe()}", _SHAPE)
            return None
        names = [name for name in node.value if name != WHEN]
        if len(names) != 1:
            shown = ", ".join(names) or "none"
            faults.add(node.where, f"expected one block, found {len(names)}: {shown}", _SHAPE)
            return None
        use = _use(names[0], node.value[names[0]], faults)
        condition = node.value.get(WHEN)
        if use is None or condition is None:
            return use
        return dataclasses.replace(
            use, when=patterns_of(SELECTABLE, known, here=ANY)(condition, faults)
        )

    return read


def _use(name: str, node: Node, faults: Faults) -> BlockUse | None:
    arguments = {} if node.value is None else node.value
    if not isinstance(arguments, Mapping):
        problem = f"expected the arguments of {name} as a mapping, found {node.describe()}"
        faults.add(node.where, problem, _SHAPE)
        return None
    try_templates(node, faults)
    _check_types(arguments, faults)
    return BlockUse(
        name=name,
        arguments={key: argument.plain() for key, argument in arguments.items()},
        where=node.where,
        lines={key: argument.where.line for key, argument in arguments.items()},
    )


def _check_types(arguments: Mapping[str, Node], faults: Faults) -> None:
    """Note dates, and versions that YAML took for numbers: version: 1.10 reads as 1.1."""
    version = arguments.get("version")
    if version and isinstance(version.value, (int, float)):
        faults.add(version.where, f"expected text, found {version.describe()}", quoted(version))
    for argument in arguments.values():
        for node in _scalars(argument):
            if isinstance(node.value, dt.date):
                faults.add(node.where, f"expected text, found {node.describe()}", quoted(node))
            elif isinstance(node.value, str) and _SECTION.search(node.value):
                problem = "a line of this text would begin a section of the Singularity definition"
                faults.add(node.where, problem, "begin no line with %, or put a space before it")


def _scalars(node: Node) -> Iterator[Node]:
    if isinstance(node.value, tuple):
        for item in node.value:
            yield from _scalars(item)
    elif isinstance(node.value, Mapping):
        for item in node.value.values():
            yield from _scalars(item)
    else:
        yield node
