"""The blocks that recipes can name: their arguments, notes on them, systems they do not work on.

hpccm ignores unknown arguments, and accepts any value for the others. The names are therefore read
from a block's own source: the keys that its constructors look up in `kwargs`, and those of the
classes and blocks that it passes `kwargs` to. The kinds are read from its documentation,
which begins each argument with its kind ("Boolean flag to"), and from `arguments.yaml`.

Importing hpccm takes longer than loading a project, so `catalogue.json` stores all of it for the
installed version. A site's own blocks, which installed Python packages register as entry points,
are read when a recipe names them. Nothing in a project's folder is executed.

The notes are what hpccm's source does not have: the rows of blocks.yaml, and of limits.yaml for the
systems. These files explain the fields.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

from builder.model import BlockUse
from builder.model.errors import BadInput
from builder.model.versions import version_order
from builder.system.files import table_beside

CATALOGUE = Path(__file__).with_name("catalogue.json")
GROUP = "build_images.blocks"  # of entry points

X86_64, PPC64LE, AARCH64 = "x86_64", "ppc64le", "aarch64"
ARCHITECTURES = (X86_64, PPC64LE, AARCH64)
DEBIAN, RED_HAT = "debian", "red-hat"  # packaging families
_HPCCM = "https://github.com/NVIDIA/hpc-container-maker/blob/v26.5.0/hpccm/building_blocks"

# Kinds of arguments, in the words of error messages.
BOOLEAN, TEXT, LIST, MAPPING = "true or false", "text", "a list of texts", "a mapping"
FLAG = "true, false or text"
TEXT_OR_LIST = "text or a list of texts"
TEXT_OR_NUMBER = "text or a whole number"
TOOLCHAIN = "a toolchain"

OPEN_PREFIXES = ("enable_", "disable_", "with_", "without_")  # of hpccm.templates.ConfigureMake
_PARAMETER = re.compile(r"^    (\w+)(?:\[=ARG\])?: +(.{0,40})", re.MULTILINE)
_INTERNAL = {"base_annotation"}
# How the documentation begins, by kind.
_WORDS = {
    BOOLEAN: ("Boolean", "- Boolean", "A Boolean", "By setting this", "Required, by setting this"),
    LIST: ("List of", "A list of", "The list of"),
    MAPPING: ("Dictionary", "A dictionary"),
    FLAG: ("Flag to control", "Flag to enable", "Flags to control"),
}
# In a block's source: the keys that it looks up, and the classes that it passes `kwargs` to.
_LOOKED_UP = re.compile(
    r"""kwargs\.(?:get|pop)\(\s*['"](\w+)['"]|['"](\w+)['"] (?:not )?in kwargs"""
)
_PASSED_ON = re.compile(r"(\w+)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\*\*kwargs")
_DEFAULT = r"""kwargs\.(?:get|pop)\(\s*['"]%s['"],\s*(?:[^()\n]* else )?['"]([^'"]*)['"](?!\.)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """The arguments of a block. `documented` are those that its own documentation lists.

    `kinds` has the kind of every argument, in words; `defaults` has the text that is used if an
    argument is missing. A block with `features` also accepts any option of `configure`.
    """

    kinds: Mapping[str, str]
    documented: Sequence[str]
    defaults: Mapping[str, str]
    features: bool

    def takes(self, argument: str) -> bool:
        """Return whether the block accepts an argument of this name."""
        feature = self.features and argument.startswith(OPEN_PREFIXES)
        return feature or argument in self.kinds

    def kind(self, argument: str) -> str:
        """Return the kind of an argument, in words; `TEXT` if none is documented."""
        return self.kinds.get(argument) or (FLAG if argument.startswith(OPEN_PREFIXES) else TEXT)


@functools.cache
def hpccm_blocks() -> Mapping[str, Block]:
    """Return hpccm's blocks and primitives by name, with our replacements for some."""
    blocks = json.loads(CATALOGUE.read_bytes())["blocks"]
    return {name: Block(**about) for name, about in blocks.items()}


def block_of(name: str) -> Block | None:
    """Return the arguments of a block: hpccm's, or one that an installed package registers."""
    if name in hpccm_blocks():
        return hpccm_blocks()[name]
    cls = registered_block(name)
    return read_block(cls) if cls else None


def registered_block(name: str) -> type | None:
    """Return the class registered under a name, or None; raises `BadInput` if it is not usable.

    Installed packages are searched only for names that hpccm does not have, because a search
    takes milliseconds.
    """
    entry = _entry_points().get(name)
    if entry is None:
        return None
    try:
        loaded = entry.load()
    except Exception as error:  # whatever the site's module raises
        raise _unusable(entry, f"it cannot be imported: {error}") from error
    if not inspect.isclass(loaded):
        raise _unusable(entry, "it is not a class")
    return loaded


def registered_names() -> list[str]:
    """Return the names under which blocks are registered."""
    return sorted(_entry_points())


@functools.cache
def _entry_points() -> dict[str, EntryPoint]:
    """Return the first entry point of each name on the path, without the working folder's."""
    here = Path.cwd()
    path = [folder for folder in sys.path if folder and Path(folder).resolve() != here]
    entries = [
        entry
        for distribution in distributions(path=path)
        for entry in distribution.entry_points.select(group=GROUP)
    ]
    return {entry.name: entry for entry in reversed(entries)}


def _unusable(entry: EntryPoint, reason: str) -> BadInput:
    return BadInput(
        f"the block {entry.name} cannot be used: {entry.value}: {reason}",
        hint=f"an installed package registers it, as an entry point of {GROUP}",
    )


def read_block(cls: type) -> Block:
    """Read the arguments of a block from its source and its documentation."""
    names, classes = _read(cls)
    own = documented(cls)
    arguments = sorted((names - _INTERNAL) | own.keys())
    defaults = {name: default(cls, name) for name in arguments}
    return Block(
        kinds={name: kind(cls, name) for name in arguments},
        documented=list(own),
        defaults={name: text for name, text in defaults.items() if text},
        features=any(other.__name__ == "ConfigureMake" for other in classes),
    )


def documented(cls: type) -> dict[str, str]:
    """Return the arguments in a block's own documentation, each with its first words."""
    pairs = _PARAMETER.findall(_parameters(cls))
    return {name: words for name, words in pairs if not name.endswith(("FEATURE", "AGE"))}


def _parameters(cls: type) -> str:
    """Return the part of a block's documentation that describes its arguments."""
    return (cls.__doc__ or "").partition("# Parameters")[2].partition("# Examples")[0]


def kind(cls: type, argument: str) -> str:
    """Return the kind of an argument, in words; `TEXT` if none is documented."""
    if special := _special_kinds().get(f"{cls.__name__}.{argument}"):
        return special
    words = documented(cls).get(argument)
    if words is None and argument.startswith(OPEN_PREFIXES):
        return FLAG
    if words is None and argument not in _special_kinds():  # ask the classes that receive it
        others = _read(cls)[1]
        words = next((text for other in others if (text := documented(other).get(argument))), None)
    matching = (kind for kind, begins in _WORDS.items() if words and words.startswith(begins))
    return next(matching, _special_kinds().get(argument, TEXT))


@functools.cache
def _special_kinds() -> Mapping[str, str]:
    """Return the kinds in arguments.yaml, by ARGUMENT or BLOCK.ARGUMENT."""
    tables = _tables()
    kinds = {name: kind for kind, names in tables["by_name"].items() for name in names.split()}
    return {**kinds, **tables["by_block"]}


@functools.cache
def _tables() -> Mapping[str, Mapping[str, str]]:
    tables: Mapping[str, Mapping[str, str]] = table_beside(__file__, "arguments.yaml")
    return tables


def words_on(cls: type, argument: str) -> str:
    """Return the documentation of an argument as one line: hpccm's, else that in arguments.yaml.

    An argument that a block passes on may be documented by the class that receives it.
    """
    pattern = rf"^    _?{argument.lstrip('_')}(?:\[=ARG\])?: +(.+?)(?=\n\n|\Z)"
    for described in (cls, *_read(cls)[1]):
        if match := re.search(pattern, _parameters(described), re.MULTILINE | re.DOTALL):
            return " ".join(match[1].split())
    words = _tables()["words"]
    return str(words.get(f"{cls.__name__}.{argument}") or words.get(argument, ""))


def default(cls: type, argument: str) -> str:
    """Return the default text of an argument, from the block's source; empty if it has none."""
    match = re.search(_DEFAULT % argument, source_of(cls))
    return match[1] if match else ""


@functools.cache
def _read(cls: type) -> tuple[set[str], list[type]]:
    """Return the names that a block looks up, and by name the classes that get its `kwargs`."""
    names: set[str] = set()
    classes: set[type] = set()
    waiting = [*cls.__mro__]
    while waiting:
        current = waiting.pop()
        if current not in classes and current is not object:
            classes.add(current)
            names.update(filter(None, itertools.chain(*_LOOKED_UP.findall(source_of(current)))))
            for other in _receivers(current):
                waiting += other.__mro__
    return names, sorted(classes, key=lambda other: other.__name__)


def _receivers(cls: type) -> Iterator[type]:
    """Yield the classes that are called with `**kwargs`."""
    names = vars(sys.modules["hpccm.building_blocks"]) | vars(sys.modules[cls.__module__])
    for name in _PASSED_ON.findall(source_of(cls)):
        if inspect.isclass(value := names.get(name)):
            yield value


@functools.cache
def source_of(cls: type) -> str:
    """Return the class's source; empty if it has none, like a generated class."""
    with warnings.catch_warnings(), contextlib.suppress(OSError, TypeError):
        warnings.simplefilter("ignore")  # hpccm's sources have escapes that Python warns about
        return inspect.getsource(cls)
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockNotes:
    """A row of blocks.yaml."""

    refused: str = ""
    clones: bool = False
    distribution: bool = False
    package: bool = False
    package_file: bool = False
    version_too: tuple[tuple[str, ...], ...] = ()
    alone_before: str = ""
    refused_version: str = ""
    refused_because: tuple[str, ...] = ()
    local_files: tuple[str, ...] = ()
    toolchain: bool = False
    mpi: bool = False
    fetches: str = "always"
    keys: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)


@functools.cache
def block_notes() -> Mapping[str, BlockNotes]:
    """Return the notes on blocks, by name."""
    notes: dict[str, BlockNotes] = {}
    for name, row in table_beside(__file__, "blocks.yaml").items():
        for key in ("local_files", "keys"):
            row[key] = tuple(row.get(key, "").split())
        row["version_too"] = tuple(tuple(group.split()) for group in row.get("version_too", ()))
        notes[name] = BlockNotes(**row)
    return notes


def notes_on(name: str) -> BlockNotes:
    """Return the notes on a block, or empty notes."""
    return block_notes().get(name, BlockNotes())


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A row of limits.yaml, of one block."""

    block: str
    reason: str
    source: str
    architectures: tuple[str, ...] = ARCHITECTURES
    family: str = ""
    on_family: str = ""
    not_on: str = ""
    newer_than: str = ""
    set: str = ""
    unset: str = ""

    def holds(self, arguments: Mapping[str, object]) -> bool:
        """Return whether the limit applies to a block with these arguments."""
        if self.newer_than:
            version = arguments.get("version")
            return isinstance(version, str) and (
                version_order(version) > version_order(self.newer_than)
            )
        return not (
            (self.set and not arguments.get(self.set)) or (self.unset and arguments.get(self.unset))
        )


@functools.cache
def limits() -> tuple[Limit, ...]:
    """Return the rows of limits.yaml, one for each block that they name."""
    rows: list[Limit] = []
    for row in table_beside(__file__, "limits.yaml"):
        architectures = tuple(row.pop("architectures", "").split()) or ARCHITECTURES
        source = row.pop("source")
        for block in row.pop("blocks").split():
            own = f"{_HPCCM}/{block}.py" if source == "hpccm" else source
            rows.append(Limit(block=block, architectures=architectures, source=own, **row))
    return tuple(rows)


def limit_reason(use: BlockUse, arch: str, hpccm_distro: str = "", distribution: str = "") -> str:
    """Return the reason why a block does not work for an architecture or a distribution, or empty.

    The arguments are those of one cell, with their templates rendered.
    """
    here = family(hpccm_distro) if hpccm_distro else ""
    reasons = []
    for row in limits():
        applies = row.block == use.name and row.on_family in ("", here)
        if not applies or not row.holds(use.arguments):
            continue
        elsewhere = bool(here) and row.family not in ("", here)
        if arch not in row.architectures:
            only = " and ".join(row.architectures)
            reasons.append(f"{row.reason} (it exists for {only} only; {row.source})")
        elif elsewhere or (distribution and row.not_on == distribution):
            reasons.append(f"{row.reason} ({row.source})")
    return "; ".join(reasons)


def family(hpccm_distro: str) -> str:
    """Return the packaging family of hpccm's `ubuntu24`, `rockylinux9` and the others."""
    return DEBIAN if hpccm_distro.startswith("ubuntu") else RED_HAT
