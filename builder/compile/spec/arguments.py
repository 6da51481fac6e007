"""Which arguments a block of hpccm takes, and of which kind each one is.

hpccm accepts and ignores arguments that it does not know, and takes any value for those that it
does. The names are therefore read from the block's own source: the keys that its constructors
look up in `kwargs`, and those of the classes and blocks that it hands `kwargs` on to. The kinds
are read from its documentation, which begins each argument with what it is ("Boolean flag to").
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import hpccm.building_blocks

from builder.compile.spec.kinds import (
    BOOLEAN,
    FLAG,
    LIST,
    MAPPING,
    OPEN_PREFIXES,
    TEXT,
    TEXT_OR_LIST,
    TEXT_OR_NUMBER,
    TOOLCHAIN,
    Block,
)

_PARAMETER = re.compile(r"^    (\w+)(?:\[=ARG\])?: +(.{0,40})", re.MULTILINE)
_INTERNAL = {"base_annotation"}

# How the documentation begins, by kind.
_WORDS = {
    BOOLEAN: ("Boolean", "- Boolean", "A Boolean", "By setting this", "Required, by setting this"),
    LIST: ("List of", "A list of", "The list of"),
    MAPPING: ("Dictionary", "A dictionary"),
    FLAG: ("Flag to control", "Flag to enable", "Flags to control"),
}
# What the documentation does not say, or says in other words.
_BY_NAME = {
    **dict.fromkeys(("_apt_key", "_export", "_hpcx", "_nogpgcheck", "annotate", "check"), BOOLEAN),
    **dict.fromkeys(("comment", "environment", "export_build_environment"), BOOLEAN),
    **dict.fromkeys(("fix_ownership", "hpcxinit", "ldconfig", "mklvars", "mpivars"), BOOLEAN),
    **dict.fromkeys(("no_check_certificate", "psxevars", "recursive", "symlink"), BOOLEAN),
    **dict.fromkeys(("system_libnuma", "unpack"), BOOLEAN),
    **dict.fromkeys(("cmake_opts", "extra_opts", "opts", "ospackages", "packages"), LIST),
    **dict.fromkeys(("annotations", "build_environment", "devel_environment"), MAPPING),
    **dict.fromkeys(("runtime_environment", "toolchain_control"), MAPPING),
    **dict.fromkeys(("_arguments", "_exclude_from", "_run_arguments", "src"), TEXT_OR_LIST),
    "repository": FLAG,
    "parallel": TEXT_OR_NUMBER,
    "toolchain": TOOLCHAIN,
}
_BY_BLOCK = {
    ("amgx", "repository"): TEXT,
    ("conda", "environment"): TEXT,
    ("openmpi", "cuda"): FLAG,  # a path as well, by its source
}


def read_block(cls: type) -> Block:
    """All that recipes' uses of a block are checked against."""
    taken = sorted(names(cls) | documented(cls).keys())
    defaults = {name: default(cls, name) for name in taken}
    return Block(
        kinds={name: kind(cls, name) for name in taken},
        documented=list(documented(cls)),
        defaults={name: value for name, value in defaults.items() if value},
        features=is_feature(cls, "with_x"),
    )


def names(cls: type) -> frozenset[str]:
    """The names of the arguments that a block takes."""
    return frozenset(_read(cls)[0] - _INTERNAL)


def documented(cls: type) -> dict[str, str]:
    """The arguments in a block's own documentation, each with its first words.

    They are some of those that it takes, and found a hundred times as fast as all.
    """
    listed = (cls.__doc__ or "").partition("# Parameters")[2]
    found = dict(_PARAMETER.findall(listed.partition("# Examples")[0]))
    return {name: words for name, words in found.items() if not name.endswith(("FEATURE", "AGE"))}


def is_feature(cls: type, argument: str) -> bool:
    """Return whether it is an option of `configure`: blocks that run it take `enable_ANYTHING`."""
    return argument.startswith(OPEN_PREFIXES) and any(
        one.__name__ == "ConfigureMake" for one in _read(cls)[1]
    )


def kind(cls: type, argument: str) -> str:
    """What an argument must be, in words; `TEXT` where nothing says more."""
    special = _BY_BLOCK.get((cls.__name__, argument))
    if special:
        return special
    if argument in documented(cls):
        return _kind(argument, documented(cls)[argument])
    if argument.startswith(OPEN_PREFIXES):
        return FLAG
    return _BY_NAME.get(argument) or _kind_elsewhere(cls, argument)


def _kind(argument: str, words: str) -> str:
    found = next((kind for kind, begins in _WORDS.items() if words.startswith(begins)), None)
    return found or _BY_NAME.get(argument, TEXT)


def _kind_elsewhere(cls: type, argument: str) -> str:
    """The kind as the blocks that `cls` hands the argument on to document it."""
    for other in sorted(_read(cls)[1], key=lambda one: one.__name__):
        if argument in documented(other):
            return _kind(argument, documented(other)[argument])
    return TEXT


def default(cls: type, argument: str) -> str | None:
    """The text that a block takes when an argument is left out, by its source; None without."""
    for node in ast.walk(_tree(cls)):
        if isinstance(node, ast.Call) and _key_of(node) == argument and len(node.args) > 1:
            found = node.args[1].orelse if isinstance(node.args[1], ast.IfExp) else node.args[1]
            value = found.value if isinstance(found, ast.Constant) else None
            return value if isinstance(value, str) and value else None
    return None


@functools.cache
def _read(cls: type) -> tuple[set[str], set[type]]:
    """The names that a block looks up, and the classes whose constructors see its `kwargs`."""
    found: set[str] = set()
    seen: set[type] = set()
    _collect(cls, found, seen)
    return found, seen


def _collect(cls: type, found: set[str], seen: set[type]) -> None:
    for one in cls.__mro__:
        if one in seen or one is object:
            continue
        seen.add(one)
        tree = _tree(one)
        found.update(_looked_up(tree))
        for other in _handed_on(one, tree):
            _collect(other, found, seen)


def _tree(cls: type) -> ast.AST:
    """The class's own source, empty where none is at hand: a site's block can be made by code.

    `inspect.getsource` takes ten times as long.
    """
    for node in _module_tree(cls.__module__).body:
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            return node
    return ast.Module(body=[], type_ignores=[])


@functools.cache
def _module_tree(module: str) -> ast.Module:
    source = getattr(sys.modules.get(module), "__file__", None)
    if not source or not source.endswith(".py"):
        return ast.Module(body=[], type_ignores=[])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hpccm's sources have escapes that Python warns about
        return ast.parse(Path(source).read_bytes())


def _looked_up(tree: ast.AST) -> Iterator[str]:
    """The literal keys in `kwargs.get(...)`, `kwargs.pop(...)`, `... in kwargs`."""
    for node in ast.walk(tree):
        key: object = None
        if isinstance(node, ast.Call):
            key = _key_of(node)
        elif isinstance(node, ast.Compare) and _is_kwargs(node.comparators[0]):
            key = node.left.value if isinstance(node.left, ast.Constant) else None
        if isinstance(key, str):
            yield key


def _key_of(node: ast.Call) -> object:
    """The literal that a call of `kwargs.get` or `kwargs.pop` asks for."""
    if (
        isinstance(node.func, ast.Attribute)
        and node.func.attr in {"get", "pop"}
        and _is_kwargs(node.func.value)
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ):
        return node.args[0].value
    return None


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
