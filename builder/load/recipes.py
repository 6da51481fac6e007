"""One file under `recipes/`, and the ancestry of all of them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from builder.load.document import Node, note, quoted
from builder.load.faults import Faults
from builder.load.lock import source_url
from builder.load.patterns import ANY, ONE, Known, patterns_of
from builder.load.readers import (
    Reader,
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
from builder.load.templated import templated_line, try_templates
from builder.model import AXES, FILE_ARGUMENTS, SELECTABLE, BlockUse, Recipe, Where

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


FOLDER = "files"
_BELOW = f"valid: a path below {FOLDER}/, such as app.conf"


def with_files(root: Path, recipes: Mapping[str, Recipe], faults: Faults) -> dict[str, Recipe]:
    """The recipes, each block with the texts of the files that it names."""

    def blocks(uses: Iterable[BlockUse]) -> tuple[BlockUse, ...]:
        return tuple(
            dataclasses.replace(use, files=_texts(root / FOLDER, use, faults))
            if use.name in FILE_ARGUMENTS
            else use
            for use in uses
        )

    return {
        name: dataclasses.replace(
            recipe, development=blocks(recipe.development), runtime=blocks(recipe.runtime)
        )
        for name, recipe in recipes.items()
    }


def _texts(folder: Path, use: BlockUse, faults: Faults) -> dict[str, str]:
    found: dict[str, str] = {}
    for argument, name in _named(use):
        line = use.lines.get(argument, use.where.line)
        where = Where(file=use.where.file, line=line, key=f"{use.where.key}.{argument}")
        text = _text(folder, name, where, faults)
        if text is not None:
            found[name] = text
    return found


def _named(use: BlockUse) -> Iterator[tuple[str, str]]:
    """The files that a block names, with the argument; what is no text has its fault elsewhere."""
    if use.arguments.get("from"):
        return  # what is copied is in another stage
    for argument in FILE_ARGUMENTS[use.name]:
        value = use.arguments.get(argument)
        names = [value] if isinstance(value, str) else value
        if isinstance(names, (list, Mapping)):
            yield from ((argument, name) for name in names if isinstance(name, str))


def _text(folder: Path, name: str, where: Where, faults: Faults) -> str | None:
    if "{{" in name or "{%" in name:
        problem = "the name of a file cannot be a template: the file is read before any cell"
        faults.add(where, problem, "give the block a condition (when) for each of the files")
        return None
    parts = PurePosixPath(name).parts
    if name != PurePosixPath(name).as_posix() or ".." in parts or name.startswith("/"):
        faults.add(where, f'"{name}" does not lie below the project\'s {FOLDER}/', _BELOW)
        return None
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        faults.add(where, f"{FOLDER}/{name} is a link to outside of {FOLDER}/", _BELOW)
        return None
    return _read(path, name, where, faults)


def _read(path: Path, name: str, where: Where, faults: Faults) -> str | None:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        faults.add(where, f"there is no file {FOLDER}/{name}", _present(path.parent))
    except IsADirectoryError:
        faults.add(where, f"{FOLDER}/{name} is a folder", "valid: its files, one by one")
    except UnicodeDecodeError:
        problem = f"{FOLDER}/{name} is no text (UTF-8), and specs hold texts only"
        faults.add(where, problem, "binary files come with a package, or by url with a block")
    except OSError as error:
        faults.add(where, f"{FOLDER}/{name} cannot be read: {error.strerror}")
    return None


def _present(folder: Path) -> str:
    if not folder.is_dir():
        return _BELOW
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    return f"in the same folder: {', '.join(names)}" if names else _BELOW
