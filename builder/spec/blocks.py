"""Which hpccm blocks a recipe can use, and which arguments each one really takes.

hpccm accepts and ignores arguments that it does not know. What a block takes is therefore read
from its own source: the keys that its constructors look up in `kwargs`, and those of the classes
and blocks that it hands `kwargs` on to.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hpccm.building_blocks
import hpccm.primitives

from builder.errors import Fault
from builder.model import BlockUse

PRIMITIVES = ("comment", "copy", "environment", "label", "raw", "shell", "user", "workdir")
_OPEN_PREFIXES = ("enable_", "disable_", "with_", "without_")  # of hpccm.templates.ConfigureMake
_PARAMETER = re.compile(r"^    (\w+): ", re.MULTILINE)
_INTERNAL = {"base_annotation"}


@functools.cache
def catalogue() -> dict[str, type]:
    """The blocks and primitives that recipes can name."""
    blocks = {
        name: value
        for name, value in vars(hpccm.building_blocks).items()
        if inspect.isclass(value) and not name.startswith("_")
    }
    blocks.update({name: getattr(hpccm.primitives, name) for name in PRIMITIVES})
    return dict(sorted(blocks.items()))


def block_faults(use: BlockUse) -> list[Fault]:
    """An unknown block, or arguments that it does not take, with what would be valid."""
    blocks = catalogue()
    if use.name not in blocks:
        return [_unknown(use, use.name, "block", sorted(blocks), use.where.line)]
    if set(use.arguments) <= _documented(use.name):
        return []
    names = arguments(use.name)
    return [
        _unknown(use, argument, f"argument of {use.name}", sorted(names), line)
        for argument in use.arguments
        for line in [use.lines.get(argument, use.where.line)]
        if argument not in names and not _is_open(use.name, argument)
    ]


@functools.cache
def arguments(name: str) -> frozenset[str]:
    """The names of the arguments that a block takes."""
    found: set[str] = set()
    _collect(catalogue()[name], found, set())
    return frozenset(found - _INTERNAL)


@functools.cache
def _documented(name: str) -> frozenset[str]:
    """The arguments in a block's own documentation: some of those that it takes, found at once."""
    listed = (catalogue()[name].__doc__ or "").partition("# Parameters")[2]
    return frozenset(_PARAMETER.findall(listed.partition("# Examples")[0]))


@functools.cache
def _is_configured(name: str) -> bool:
    seen: set[type] = set()
    _collect(catalogue()[name], set(), seen)
    return any(cls.__name__ == "ConfigureMake" for cls in seen)


def _is_open(name: str, argument: str) -> bool:
    return argument.startswith(_OPEN_PREFIXES) and _is_configured(name)


def _collect(cls: type, found: set[str], seen: set[type]) -> None:
    for one in cls.__mro__:
        if one in seen or not one.__module__.startswith("hpccm"):
            continue
        seen.add(one)
        tree = _tree(one)
        found.update(_looked_up(tree))
        for other in _handed_on(one, tree):
            _collect(other, found, seen)


def _tree(cls: type) -> ast.ClassDef:
    """The class's own source; `inspect.getsource` takes ten times as long."""
    for node in _module_tree(cls.__module__).body:
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            return node
    raise LookupError(f"{cls.__module__} does not define {cls.__name__}")


@functools.cache
def _module_tree(module: str) -> ast.Module:
    source = sys.modules[module].__file__
    assert source is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hpccm's sources have escapes that Python warns about
        return ast.parse(Path(source).read_bytes())


def _looked_up(tree: ast.AST) -> Iterator[str]:
    """The literal keys in `kwargs.get(...)`, `kwargs.pop(...)`, `kwargs[...]`, `... in kwargs`."""
    for node in ast.walk(tree):
        key: Any = None
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"get", "pop"}
            and _is_kwargs(node.func.value)
            and node.args
        ):
            key = node.args[0]
        elif isinstance(node, ast.Compare) and _is_kwargs(node.comparators[0]):
            key = node.left
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value


def _handed_on(cls: type, tree: ast.AST) -> Iterator[type]:
    """The classes that are called with `**kwargs`."""
    namespace = vars(sys.modules[cls.__module__])
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(
            keyword.arg is None and _is_kwargs(keyword.value) for keyword in node.keywords
        ):
            target = node.func
            name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
            value = namespace.get(name, getattr(hpccm.building_blocks, name, None))
            if inspect.isclass(value):
                yield value


def _is_kwargs(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "kwargs"


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
