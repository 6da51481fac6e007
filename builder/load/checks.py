"""Read `tests/images/checks.yaml`: the checks that run inside containers."""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import PurePosixPath

from builder.load.document import Faults, Node
from builder.load.readers import (
    Reader,
    Table,
    identifier,
    keyed,
    list_of,
    one_of,
    positive,
    record,
    text,
)
from builder.load.recipes import templated
from builder.model import Check

_timeout = positive("a number of seconds", "valid: a whole number above 0, such as 300")
NEEDS = ("mpi", "cuda", "gpu")


def read_checks(node: Node, files: Collection[str] | None, faults: Faults) -> dict[str, Check]:
    """Return the checks by name; `files` are the files beside it, None if unknown."""
    folder = PurePosixPath(node.where.file).parent
    required = {"about": text, "run": _command, "timeout": _timeout}
    optional = {
        "sources": list_of(one_of(files, f"file in {folder}")),
        "build": list_of(_command),
        "needs": list_of(one_of(NEEDS, "need")),
    }

    def check_of(name: str) -> Reader[Check]:
        kind = functools.partial(Check, name=name)
        return record(kind, required, optional, fields={"timeout": "timeout_s"}, placed=True)

    table = Table(node, faults, required=("checks",))
    nothing: tuple[Check, ...] = ()
    checks = table.read("checks", keyed(identifier, check_of), nothing)
    return {check.name: check for check in checks}


def _command(node: Node, faults: Faults) -> str:
    text(node, faults)
    return templated(node, faults)
