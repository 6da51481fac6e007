"""`tests/images/checks.yaml`: what runs inside the containers."""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import PurePosixPath

from builder.load.document import Node, key_node
from builder.load.faults import Faults
from builder.load.readers import (
    Reader,
    Table,
    identifier,
    list_of,
    mapping,
    one_of,
    positive,
    record,
    text,
)
from builder.load.templated import templated
from builder.model import Check

NEEDS = ("mpi", "cuda", "gpu")


def read_checks(node: Node, files: Collection[str] | None, faults: Faults) -> dict[str, Check]:
    """Return the checks by name; `files` are the files beside the document, if they are known."""
    table = Table(node, faults, required=("checks",))
    return table.read("checks", _checks(files), {})


def _checks(files: Collection[str] | None) -> Reader[dict[str, Check]]:
    def read(node: Node, faults: Faults) -> dict[str, Check]:
        return {
            name: _check(identifier(key_node(name, entry), faults), entry, files, faults)
            for name, entry in (mapping(node, faults) or {}).items()
        }

    return read


def _check(name: str, node: Node, files: Collection[str] | None, faults: Faults) -> Check:
    folder = PurePosixPath(node.where.file).parent
    seconds = positive("a number of seconds", "valid: a whole number above 0, such as 300")
    read = record(
        functools.partial(Check, name=name),
        {"about": text, "run": _command, "timeout": seconds},
        {
            "sources": list_of(one_of(files, f"file in {folder}")),
            "build": list_of(_command),
            "needs": list_of(one_of(NEEDS, "need")),
        },
        fields={"timeout": "timeout_s"},
        placed=True,
    )
    return read(node, faults)


def _command(node: Node, faults: Faults) -> str:
    text(node, faults)
    return templated(node, faults)
