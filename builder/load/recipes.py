"""One file under `recipes/`, and the ancestry of all of them."""

from __future__ import annotations

from collections.abc import Mapping

from builder.load.blocks import read_blocks
from builder.load.document import Node
from builder.load.faults import Faults
from builder.load.known import Known
from builder.load.lock import source_url
from builder.load.patterns import ONE, patterns_of
from builder.load.readers import (
    Table,
    identifier,
    line,
    list_of,
    mapping_of,
    one_of,
    one_or_more,
    text,
    variable,
    version,
)
from builder.load.templated import templated_line
from builder.model import AXES, Recipe, Where

_REQUIRED = ("recipe", "version", "about")
_OPTIONAL = (
    *("parent", "axes", "development", "runtime"),
    *("environment", "labels", "command", "entrypoint", "checks", "sources"),
)


def read_recipe(node: Node, known: Known, faults: Faults) -> Recipe:
    """A recipe; its parent, checks and axes are checked against what exists."""
    table = Table(node, faults, required=_REQUIRED, optional=_OPTIONAL)
    return Recipe(
        name=table.read("recipe", identifier, ""),
        version=table.read("version", version, ""),
        about=table.read("about", line, ""),
        parent=table.read("parent", one_of(known.recipes, "recipe"), None),
        limits=table.read("axes", patterns_of(AXES, known, here=ONE), {}),
        development=table.read("development", read_blocks(known), ()),
        runtime=table.read("runtime", read_blocks(known), ()),
        environment=table.read("environment", mapping_of(templated_line, key=variable), {}),
        labels=table.read("labels", mapping_of(templated_line, key=text), {}),
        command=table.read("command", list_of(line, least=1), ()),
        entrypoint=table.read("entrypoint", list_of(line, least=1), ()),
        checks=table.read("checks", list_of(one_of(known.checks, "check"), distinct=True), ()),
        where=table.where,
        lines=table.lines(),
        sources=table.read("sources", mapping_of(one_or_more(source_url), key=_source_name), {}),
    )


def _source_name(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if value and not value.isidentifier():
        valid = "valid: letters, digits and _ of which the first is no digit"
        faults.add(node.where, f'"{value}" cannot name a source', valid)
    return value


def check_ancestry(recipes: Mapping[str, Recipe], faults: Faults) -> None:
    """Note each cycle of parents, once."""
    done: set[str] = set()
    for name in recipes:
        path = _path_up(name, recipes, done)
        end = recipes[path[-1]].parent if path else None
        if end in path:
            _note_cycle(path[path.index(end) :], recipes, faults)
        done.update(path)


def _path_up(name: str, recipes: Mapping[str, Recipe], done: set[str]) -> list[str]:
    """The recipes from `name` upwards, to the first that was seen before."""
    path: list[str] = []
    current: str | None = name
    while current is not None and current in recipes and current not in (*done, *path):
        path.append(current)
        current = recipes[current].parent
    return path


def _note_cycle(cycle: list[str], recipes: Mapping[str, Recipe], faults: Faults) -> None:
    first = recipes[cycle[0]]
    where = Where(file=first.where.file, line=first.lines["parent"], key="parent")
    shown = " → ".join([*cycle, cycle[0]])
    faults.add(where, f"the parents go round in a circle: {shown}", "one of them needs no parent")
