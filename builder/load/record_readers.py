"""Readers of the values in records, contracts and policies."""

from __future__ import annotations

import itertools
import re
from typing import TypeVar

from builder.load.document import Faults, Node, Probe, note, suggest
from builder.load.readers import Reader, matching, text
from builder.model.architectures import CPU_TARGETS
from builder.model.cells import GENERIC

T = TypeVar("T")
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")
_DRIVER = re.compile(rf"{_VERSION.pattern}|none")
_KERNEL = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}[0-9A-Za-z.+_~-]*")
_NUMBER = re.compile(r"[0-9]{1,4}")
_CAPABILITY = re.compile(r"[1-9][0-9]?\.[0-9]")
_MANY = 100_000
_PAGES = (4096, 16384, 65536)


def maybe(reader: Reader[T]) -> Reader[T | None]:
    """Return a reader of a value that may be null, which means not known."""

    def read(node: Node, faults: Faults) -> T | None:
        if isinstance(node, Probe):
            reader(child := node.child(), faults)
            note(node, anyOf=[child.schema, {"type": "null"}])
            return None
        return None if node.value is None else reader(node, faults)

    return read


dotted = matching(_VERSION, "is not a version", "valid: digits and dots: 450.80.02")
kernel = matching(_KERNEL, "is not a kernel release", "valid: as uname -r prints it")
driver = matching(
    _DRIVER, "is not a driver version", 'valid: "418.87.00", or "none" if no driver is loaded'
)
plain_capability = matching(_NUMBER, "is not a compute capability", "valid: a number: 70 for 7.0")
_capability = matching(_CAPABILITY, "is not a compute capability", 'valid: such as "7.0"')


def capability(node: Node, faults: Faults) -> int | None:
    """Read a compute capability as NVIDIA writes it; return 70 for 7.0."""
    value = _capability(node, faults)
    return int(value.replace(".", "")) if value else None


def target(node: Node, faults: Faults) -> str:
    """Read `generic`, or a CPU target of any architecture."""
    value = text(node, faults)
    known = [GENERIC, *itertools.chain(*CPU_TARGETS.values())]
    note(node, enum=known)
    if value and value not in known:
        faults.add(node.where, f'unknown CPU target: "{value}"', suggest(value, known))
        return ""
    return value


def truth(node: Node, faults: Faults) -> bool | None:
    note(node, type="boolean")
    if isinstance(node.value, bool):
        return node.value
    faults.add(node.where, f"expected true or false, found {node.describe()}")
    return None


def count(node: Node, faults: Faults) -> int | None:
    note(node, type="integer", minimum=0)
    value = node.value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MANY:
        return value
    problem = f"expected a count, found {node.describe()}"
    faults.add(node.where, problem, "valid: a whole number, such as 4")
    return None


def page_size(node: Node, faults: Faults) -> int | None:
    """Read a size of memory pages, in bytes."""
    note(node, enum=list(_PAGES))
    if isinstance(node.value, int) and node.value in _PAGES:
        return node.value
    problem = f"expected the size of memory pages, found {node.describe()}"
    faults.add(node.where, problem, f"valid: {', '.join(map(str, _PAGES))}, as getconf PAGESIZE")
    return None


def exactly(schema: str) -> Reader[str]:
    """Return a reader that accepts only the text `schema`."""

    def read(node: Node, faults: Faults) -> str:
        note(node, enum=[schema], description="the format of this file")
        value = text(node, faults)
        if value and value != schema:
            faults.add(node.where, f'unsupported schema: "{value}"', f"valid: {schema}")
        return value

    return read
