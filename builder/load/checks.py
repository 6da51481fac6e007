"""`tests/images/checks.yaml`: what runs inside the containers."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath

from builder.load.document import Node, key_node, note
from builder.load.faults import Faults
from builder.load.readers import Reader, Table, identifier, list_of, mapping, one_of, text
from builder.load.templated import templated
from builder.model import Check

NEEDS = ("mpi", "cuda", "gpu")


def read_checks(node: Node, files: Collection[str] | None, faults: Faults) -> dict[str, Check]:
    """The checks by name; `files` are the names of the files beside the document, if known."""
    table = Table(node, faults, required=("checks",))
    return table.read("checks", _checks(files), {})


def _checks(files: Collection[str] | None) -> Reader[dict[str, Check]]:
    def read(node: Node, faults: Faults) -> dict[str, Check]:
        entries = (mapping(node, faults) or {}).items()
        return {name: _check(name, entry, files, faults) for name, entry in entries}

    return read


def _check(name: str, node: Node, files: Collection[str] | None, faults: Faults) -> Check:
    table = Table(
        node,
        faults,
        required=("about", "run", "timeout"),
        optional=("sources", "build", "needs"),
    )
    folder = PurePosixPath(node.where.file).parent
    return Check(
        name=identifier(key_node(name, node), faults),
        about=table.read("about", text, ""),
        sources=table.read("sources", list_of(one_of(files, f"file in {folder}")), ()),
        build=table.read("build", list_of(_command), ()),
        run=table.read("run", _command, ""),
        needs=table.read("needs", list_of(one_of(NEEDS, "need")), ()),
        timeout_s=table.read("timeout", _seconds, 0),
        where=node.where,
    )


def _command(node: Node, faults: Faults) -> str:
    text(node, faults)
    return templated(node, faults)


def _seconds(node: Node, faults: Faults) -> int:
    value = node.value
    note(node, type="integer", minimum=1)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    problem = f"expected a number of seconds, found {node.describe()}"
    faults.add(node.where, problem, "valid: a whole number above 0, such as 300")
    return 0
