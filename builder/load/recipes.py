"""Read recipes, and check the ancestry of all recipes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from builder.load.document import Faults, Node, note, quoted, suggest
from builder.load.lock import source_url
from builder.load.patterns import ANY, ONE, Known, patterns_of
from builder.load.readers import (
    Reader,
    any_text,
    described,
    identifier,
    line,
    list_of,
    mapping_of,
    matching,
    one_of,
    one_or_more,
    record,
    text,
    variable,
    version,
)
from builder.model import (
    AXES,
    CUDA_LIBRARIES,
    FILE_ARGUMENTS,
    MPI_ROUTES,
    OPTIONAL,
    SELECTABLE,
    BlockUse,
    Layers,
    Recipe,
    Where,
    templates,
)

# The arguments of the blocks that are not hpccm's, with a description of valid values.
TOOLKIT_ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "cuda": {
        "capabilities": 'a list of compute capabilities, such as ["70"]',
        "libraries": f"a list of libraries: {', '.join(CUDA_LIBRARIES)}",
        "cudnn": "true, false or optional (installed if the route has it)",
        "nccl": "true, false or optional (installed if the route has it)",
        "sdk": 'version and eula of an HPC SDK, such as {version: "23.9", eula: true}',
        "toolkit": "false, if the recipe's own packages bring CUDA's libraries",
    },
    "mpi": {
        "routes": f"a list of routes: {', '.join(MPI_ROUTES)}",
        "source": "the arguments of hpccm's block, as a mapping",
    },
}

_source_name = matching(
    re.compile(r"[^\W\d]\w*"),
    "is not a valid name of a source",
    "valid: letters, digits and _, not beginning with a digit",
)


def read_recipe(node: Node, known: Known, faults: Faults) -> Recipe:
    """Return a recipe; its parent, checks and axes must refer to known names."""
    read = record(
        Recipe,
        {
            "recipe": described("the name; the file is NAME.yaml", identifier),
            "version": described("the recipe's own version, in quotes (PEP 440)", version),
            "about": described("one line; it becomes a label of the image", line),
        },
        {
            "parent": described(
                "the recipe that this one extends", one_of(known.recipes, "recipe")
            ),
            "axes": described(
                "the values of the matrix that the recipe supports; children inherit them",
                patterns_of(AXES, known, here=ONE),
            ),
            "development": described(
                "blocks of the development stage, in order", read_blocks(known)
            ),
            "runtime": described(
                "blocks of the run-time stage, beside what the development blocks contribute",
                read_blocks(known),
            ),
            "environment": described(
                "variables of the image; $NAME expands, commands do not",
                mapping_of(templated_line, key=variable),
            ),
            "labels": described(
                "labels of the image, beside the standard ones",
                mapping_of(templated_line, key=text),
            ),
            "command": described(
                "the default command, as a list; a child has its own, or its nearest ancestor's",
                list_of(line, least=1),
            ),
            "entrypoint": described("the arguments before every command", list_of(line, least=1)),
            "checks": described(
                "names in tests/images/checks.yaml; a child inherits its ancestors' checks",
                list_of(one_of(known.checks, "check"), distinct=True),
            ),
            "sources": described(
                "downloaded files by name: a URL, or several alternatives",
                mapping_of(one_or_more(source_url), key=_source_name),
            ),
        },
        fields={"recipe": "name", "axes": "limits"},
        placed=True,
    )
    entries = node.value if isinstance(node.value, Mapping) else {}
    lines = {key: entry.where.line for key, entry in entries.items()}
    return dataclasses.replace(read(node, faults), lines=lines)


def check_ancestry(recipes: Mapping[str, Recipe], faults: Faults) -> None:
    """Report each cycle of parents once."""
    done: set[str] = set()
    for name in recipes:
        path: list[str] = []
        current: str | None = name
        while current is not None and current in recipes and current not in (*done, *path):
            path.append(current)
            current = recipes[current].parent
        if current in path:
            cycle = path[path.index(current) :]
            first = recipes[cycle[0]]
            where = Where(file=first.where.file, line=first.lines["parent"], key="parent")
            shown = " → ".join([*cycle, cycle[0]])
            problem = f"the parents form a cycle: {shown}"
            faults.add(where, problem, "remove the parent of one of them")
        done.update(path)


WHEN = "when"
_SECTION = re.compile(r"(?m)(?<=\n)%[a-z]")  # in any line but the first
BLOCK_SCHEMA = "#/definitions/block"  # hpccm knows the blocks: builder.compile.spec.schema has it
_SHAPE = "valid: one block and its arguments, such as gnu: {fortran: true} or gnu: {}"
_EXAMPLES = {
    "packages": "valid: packages: {apt: [libhdf5-dev], yum: [hdf5-devel]}",
    "run": "there is no block run; valid: shell: {commands: [make, make install]}",
    "shell": "valid: shell: {commands: [make, make install]}",
}


def read_blocks(known: Known) -> Reader[tuple[BlockUse, ...]]:
    """Return a reader of a list of blocks, which leaves out malformed ones."""
    condition = patterns_of(SELECTABLE, known, here=ANY)

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
        if use is None or WHEN not in node.value:
            return use
        return dataclasses.replace(use, when=condition(node.value[WHEN], faults))

    return list_of(read)


def _use(name: str, node: Node, faults: Faults) -> BlockUse | None:
    arguments = {} if node.value is None else node.value
    if not isinstance(arguments, Mapping):
        problem = f"expected the arguments of {name} as a mapping, found {node.describe()}"
        faults.add(node.where, problem, _EXAMPLES.get(name, _SHAPE))
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
    """Report dates, and versions that YAML reads as numbers: `version: 1.10` becomes 1.1."""
    version = arguments.get("version")
    if version and isinstance(version.value, (int, float)):
        faults.add(version.where, f"expected text, found {version.describe()}", quoted(version))
    for node in itertools.chain(*(argument.scalars() for argument in arguments.values())):
        if isinstance(node.value, dt.date):
            faults.add(node.where, f"expected text, found {node.describe()}", quoted(node))
        elif isinstance(node.value, str) and _SECTION.search(node.value):
            problem = "a line of this text would start a section of the Singularity definition"
            faults.add(node.where, problem, "do not start a line with %, or put a space before it")


def check_toolkit(use: BlockUse, faults: Faults) -> None:
    """Report unknown arguments of our own blocks, and arguments with a wrong kind of value."""
    valid = TOOLKIT_ARGUMENTS[use.name]
    for name, value in use.arguments.items():
        if name not in valid:
            problem = f'unknown argument of {use.name}: "{name}"'
            faults.add(use.place_of(name), problem, suggest(name, valid))
        elif not _fits(name, value):
            faults.add(use.place_of(name), f"expected {valid[name]}")
        elif name not in {"toolkit", "capabilities"} and "toolkit" in use.arguments:
            faults.add(use.place_of(name), f"{name} needs a toolkit, and the block has none")


_LISTED = {"routes": MPI_ROUTES, "libraries": CUDA_LIBRARIES}


def _fits(name: str, value: object) -> bool:
    if name in {"cudnn", "nccl"}:
        return isinstance(value, bool) or value == OPTIONAL
    if name == "source":
        return isinstance(value, dict)
    if name == "toolkit":
        return value is False
    if name == "sdk":
        return _is_sdk(value)
    items = value if isinstance(value, list) else []
    if name in _LISTED:
        return bool(items) and all(item in _LISTED[name] for item in items)
    return bool(items) and all(isinstance(item, str) and item.isdecimal() for item in items)


def _is_sdk(value: object) -> bool:
    """Return whether a value names an SDK release and accepts NVIDIA's license terms."""
    if not isinstance(value, dict) or set(value) != {"version", "eula"}:
        return False
    return isinstance(value["version"], str) and value["eula"] is True


FOLDER = "files"
_BELOW = f"valid: a path below {FOLDER}/, such as app.conf"
_STAGE = f"{_BELOW}; `from: development` copies from the development stage"


def with_files(layers: Layers, recipes: Mapping[str, Recipe], faults: Faults) -> dict[str, Recipe]:
    """Return the recipes of a layer with the texts of the files that their blocks name.

    `layers` are their own and those below it.
    """

    def blocks(uses: Iterable[BlockUse]) -> tuple[BlockUse, ...]:
        return tuple(
            dataclasses.replace(use, files=_texts(layers, use, faults))
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


def _texts(layers: Layers, use: BlockUse, faults: Faults) -> dict[str, str]:
    """Return the texts of the files that a block names; other checks report wrong types."""
    texts: dict[str, str] = {}
    # Files copied from another stage are not files of the project.
    for argument in () if use.arguments.get("from") else FILE_ARGUMENTS[use.name]:
        value = use.arguments.get(argument)
        names = [value] if isinstance(value, str) else value
        for name in names if isinstance(names, (list, Mapping)) else ():
            if isinstance(name, str):
                try:
                    texts[name] = _text(layers, name)
                except _UnreadableError as error:
                    faults.add(use.place_of(argument), *error.args)
    return texts


class _UnreadableError(Exception):
    """A file cannot be copied: the problem, and a hint about valid names."""


def _text(layers: Layers, name: str) -> str:
    if "{{" in name or "{%" in name:
        raise _UnreadableError(
            "a file name cannot be a template: files are read before there are cells",
            "write one block for each file, with a condition (when)",
        )
    parts = PurePosixPath(name).parts
    if name != PurePosixPath(name).as_posix() or ".." in parts or name.startswith("/"):
        hint = _STAGE if name.startswith("/") else _BELOW
        raise _UnreadableError(f'"{name}" is not below the project\'s {FOLDER}/', hint)
    holder = [layers.own, *layers.holders(f"{FOLDER}/{name}")][-1]
    folder = holder.folder / FOLDER
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise _UnreadableError(f"{FOLDER}/{name} is a link that leaves {FOLDER}/", _BELOW)
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise _UnreadableError(f"file not found: {FOLDER}/{name}", _present(path, folder)) from None
    except UnicodeDecodeError:
        raise _UnreadableError(
            f"{FOLDER}/{name} is not UTF-8 text, and specs can only contain text",
            "install binary files with a package, or download them with a block (url)",
        ) from None
    except OSError as error:
        problem = f"{FOLDER}/{name} cannot be read: {error.strerror}"
        raise _UnreadableError(problem, "valid: a file, not a folder") from None


def _present(path: Path, folder: Path) -> str:
    """Return a hint with the files beside a missing one, else with those below `folder`."""
    if names := sorted(entry.name for entry in path.parent.glob("*") if entry.is_file()):
        return f"in the same folder: {', '.join(names)}"
    below = sorted(str(at.relative_to(folder)) for at in folder.rglob("*") if at.is_file())
    return suggest(str(path.relative_to(folder)), below) if below else _BELOW


# ---- Templates: each is tried now, before a cell needs it ----

_NAMES = templates.sample_names()
# For a missing attribute jinja2 names the type of the value; a template's author knows it as `mpi`
_TYPES = {
    f"'{type(value).__module__}.{type(value).__name__} object'": name
    for name, value in _NAMES.items()
}
_VALID = f"valid: {templates.VALID_NAMES}"
_SYNTAX = "valid: an expression between {{ and }}, such as {{ mpi.version }}"


def templated(node: Node, faults: Faults) -> str:
    """Read text that may contain templates and must render to text."""
    value = any_text(node, faults)
    rendered = _rendered(value, node, faults)
    if not isinstance(rendered, str):
        kind = "a list" if isinstance(rendered, list) else f"the value {rendered}"
        faults.add(
            node.where,
            f"the template renders to {kind}, expected text",
            "put it into a longer text, or add a filter such as | join(' ')",
        )
    return value


def templated_line(node: Node, faults: Faults) -> str:
    """Read one line of text that may contain templates: the value of a variable or a label."""
    value = templated(node, faults)
    if "\n" in value.strip():
        faults.add(node.where, "this text has several lines", "write it in one line")
    return value


def try_templates(node: Node, faults: Faults) -> None:
    """Report each string at or below `node` that does not render."""
    for scalar in node.scalars():
        if isinstance(scalar.value, str):
            _rendered(scalar.value, scalar, faults)


def _rendered(value: str, node: Node, faults: Faults) -> object:
    try:
        return templates.render(value, _NAMES)
    except templates.TemplateSyntax as error:
        faults.add(node.where, f"the template is not complete or not valid: {error}", _SYNTAX)
        return ""
    except templates.TemplateError as error:
        problem = str(error)
        for shown, name in _TYPES.items():
            problem = problem.replace(shown, name)
        faults.add(node.where, f"the template cannot be rendered: {problem}", _VALID)
        return ""
