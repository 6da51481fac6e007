"""Read YAML files as values with their file, line and key.

The parser composes nodes instead of building plain objects: every node has a line. Scalars get
the types that `yaml.safe_load` gives them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from yaml.constructor import SafeConstructor
from yaml.reader import Reader

from builder.facts.tables import Where
from builder.model.errors import Fault, suggestion

# libyaml's parser is several times faster; PyYAML may have been built without it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset(
    _TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp")
)

# Nested aliases can expand a few lines to more values than memory holds. The shipped files have
# some hundred values each.
VALUES_LIMIT = 100_000

# libyaml composes recursively, on the C stack: some 20,000 open brackets crash the interpreter. So
# the levels of a text are counted first if it has many of the characters that open a level.
DEPTH_LIMIT = 40
_OPENING = "[{-?:"
_MANY = 2_000

Scalar = str | int | float | bool | dt.date | None

_TABS = "indent with spaces: this line begins with a tab"
# Beginnings of libyaml's and PyYAML's problems, each with what to do.
_ADVICE = {
    "did not find expected key": "compare this line's indentation with that of the lines above",
    "did not find expected '-'": "compare this line's indentation with that of the lines above",
    "could not find expected ':'": "a key ends with a colon: key: value",
    "mapping values are not": "quote a text with a colon and a space; indent keys like the others",
}
_TEMPLATE = 'write a template in quotes: "{{ mpi.version }}"'

# The error of libyaml's scanner at its own limit, in the wheels of PyYAML since 6.0.4.
_NESTING = "exceeded maximum nesting depth"


class _UnreadableError(Exception):
    """A file is not a YAML document: the problem, its line, and a hint about valid content."""

    def __init__(self, problem: str, line: int = 1, *, valid: str = "") -> None:
        super().__init__(problem)
        self.line = line
        self.valid = valid


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A value and its place; the value of a key has the line of the key.

    `text` is a scalar as written in the file (`1.10` for the number 1.1).
    """

    where: Where
    value: Scalar | tuple[Node, ...] | Mapping[str, Node]
    text: str = ""

    def plain(self) -> object:
        """Return the value without places, as `yaml.safe_load` returns it."""
        if isinstance(self.value, tuple):
            return [item.plain() for item in self.value]
        if isinstance(self.value, Mapping):
            return {key: item.plain() for key, item in self.value.items()}
        return self.value

    def scalars(self) -> Iterator[Node]:
        """Yield the scalars in this value, or the value itself if it is a scalar."""
        items = tuple(self.value.values()) if isinstance(self.value, Mapping) else self.value
        if not isinstance(items, tuple):
            yield self
            return
        for item in items:
            yield from item.scalars()

    def describe(self) -> str:
        """Return the kind of the value for an error message."""
        if isinstance(self.value, tuple):
            return "a list"
        if isinstance(self.value, Mapping):
            return "a mapping"
        if self.value is None:
            return "nothing"
        if isinstance(self.value, str):
            return f'the text "{self.text}"'
        return f"{_kind(self.value)} {self.text}"


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "the boolean"
    return "the date" if isinstance(value, dt.date) else "the number"


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe(Node):
    """A node without a value that collects a reader's JSON Schema.

    A reader that gets a probe describes the values that it accepts with `note`. A probe can stand
    for any kind of value; as a mapping it has one entry, whose key is a probe, too.
    """

    schema: dict[str, object] = field(default_factory=dict)
    key: Probe | None = None

    def child(self) -> Probe:
        """Return a probe for a value inside this one."""
        key = Probe(where=self.where, value="")
        return Probe(where=self.where, value="", key=key)


def note(node: Node, **schema: object) -> None:
    """Add keywords to the JSON Schema of `node` if it is a probe."""
    if isinstance(node, Probe):
        node.schema.update(schema)


def learnt(reader: Callable[[Node, Faults], object]) -> dict[str, object]:
    """Return the JSON Schema of the values that a reader accepts, found with a probe."""
    probe = Probe(where=Where(file="", line=1), value="")
    reader(probe, Faults())
    return probe.schema


def key_node(key: str, entry: Node) -> Node:
    """Return the key of an entry as a node, for readers of names."""
    if isinstance(entry, Probe) and entry.key:
        return entry.key
    return Node(where=entry.where, value=key, text=key)


def inside(where: Where, key: str, line: int | None = None) -> Where:
    """Return the place of a key in the mapping at `where`; the line defaults to the mapping's."""
    path = f"{where.key}.{key}" if where.key else key
    return Where(file=where.file, line=line or where.line, key=path)


def parse(path: Path, file: str, faults: Faults, *, if_empty: str = "") -> Node | None:
    """Return the document in a YAML file; None, with a fault, if it cannot be read.

    `file` is the file's name in messages, and `if_empty` the hint for an empty file.
    """
    where = Where(file=file, line=1)
    if path.exists() and not path.is_file() and not path.is_dir():
        faults.add(where, "not a regular file")
        return None
    try:
        return parse_bytes(path.read_bytes(), file, faults, if_empty=if_empty)
    except FileNotFoundError:
        faults.add(where, "the file is missing")
    except OSError as error:
        faults.add(where, f"the file cannot be read: {error.strerror}")
    return None


def parse_bytes(data: bytes, file: str, faults: Faults, *, if_empty: str = "") -> Node | None:
    """Return the document in the content of a YAML file; None, with a fault, if it is not valid."""
    try:
        raw = _compose(_decoded(data), if_empty)
        where = Where(file=file, line=raw.start_mark.line + 1)
        return _Converter(faults).node(raw, where)
    except _UnreadableError as error:
        faults.add(Where(file=file, line=error.line), error.args[0], error.valid)
        return None


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _UnreadableError("the text is not UTF-8", line) from None
    # Both parsers refuse these characters with an error without a line. libyaml accepts a byte
    # order mark only at the very beginning, where `utf-8-sig` dropped it.
    bad = [match.start() for match in [Reader.NON_PRINTABLE.search(text)] if match]
    bad += [text.index("\ufeff")] if "\ufeff" in text else []
    if bad:
        line = text.count("\n", 0, min(bad)) + 1
        character = f"U+{ord(text[min(bad)]):04X}"
        raise _UnreadableError(f"the character {character} is not allowed in YAML", line)
    return text


def _compose(text: str, if_empty: str) -> yaml.Node:
    try:
        if sum(map(text.count, _OPENING)) > _MANY:
            _check_depth(text)
        raw: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        is_key = error.context == "while scanning a simple key"  # the key is where the mistake is
        mark = (is_key and error.context_mark) or error.problem_mark or error.context_mark
        problem = ", ".join(filter(None, (error.context, error.problem)))
        if _NESTING in problem:
            raise _too_large() from None
        line = "".join(text.splitlines()[mark.line :][:1]) if mark else ""
        is_tab = "\t" in line[: len(line) - len(line.lstrip())]
        valid = _TABS if is_tab else _advice(error.problem or "")
        number = mark.line + 1 if mark else 1
        raise _UnreadableError(f"not YAML: {problem}", number, valid=valid) from None
    except RecursionError:  # of PyYAML's own parser
        raise _too_large() from None
    if raw is None:
        raise _UnreadableError("the file is empty", valid=if_empty)
    return raw


def _advice(problem: str) -> str:
    return next((hint for start, hint in _ADVICE.items() if problem.startswith(start)), "")


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_LIMIT:
            raise _too_large()


def _too_large() -> _UnreadableError:
    limits = f"{DEPTH_LIMIT} levels and {VALUES_LIMIT} values, with aliases expanded"
    return _UnreadableError("the file is too deep or too large", valid=f"valid: up to {limits}")


class _Converter:
    """Converts composed YAML nodes into `Node`s, and reports YAML features that we do not allow."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._constructor = SafeConstructor()
        self._ancestors: set[int] = set()
        self._count = 0

    def node(self, raw: yaml.Node, where: Where) -> Node:
        self._count += 1
        if self._count > VALUES_LIMIT or len(self._ancestors) > DEPTH_LIMIT:
            raise _too_large()
        if isinstance(raw, yaml.ScalarNode):
            return self._scalar(raw, where)
        if id(raw) in self._ancestors:
            self._faults.add(where, "the alias refers to a value that contains it")
            return Node(where=where, value=())
        self._ancestors.add(id(raw))
        try:
            return self._collection(raw, where)
        finally:
            self._ancestors.remove(id(raw))

    def _collection(self, raw: yaml.Node, where: Where) -> Node:
        if raw.tag not in (_TAG + "map", _TAG + "seq"):
            self._reject_tag(raw, where)
        if isinstance(raw, yaml.MappingNode):
            return Node(where=where, value=self._mapping(raw, where))
        items = []
        for index, item in enumerate(raw.value):
            line = item.start_mark.line + 1
            place = Where(file=where.file, line=line, key=f"{where.key}[{index}]")
            items.append(self.node(item, place))
        return Node(where=where, value=tuple(items))

    def _mapping(self, raw: yaml.MappingNode, where: Where) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        for raw_key, raw_value in raw.value:
            line = raw_key.start_mark.line + 1
            key = self._key(raw_key, Where(file=where.file, line=line, key=where.key))
            if key is None:
                continue
            place = inside(where, key, line)
            node = self.node(raw_value, place)
            if key in entries:
                first = entries[key].where.line
                self._faults.add(place, f"duplicate key, first in line {first}")
            entries.setdefault(key, node)
        return entries

    def _key(self, raw: yaml.Node, where: Where) -> str | None:
        if raw.tag == _TAG + "merge":
            self._faults.add(where, "merge keys (<<) are not supported", "write out the keys")
            return None
        key = self.node(raw, where)
        if isinstance(key.value, str):
            return key.value
        valid = _TEMPLATE if isinstance(key.value, Mapping) else quoted(key)
        self._faults.add(where, f"a key must be text, found {key.describe()}", valid)
        return None

    def _scalar(self, raw: yaml.ScalarNode, where: Where) -> Node:
        value = text = str(raw.value)
        if raw.tag not in _SCALAR_TAGS:
            self._reject_tag(raw, where)
        elif raw.tag != _TAG + "str":
            try:
                value = self._constructor.construct_object(raw)
            except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError):
                # PyYAML's constructors raise all of these, for example for `!!bool x` or 2024-13-45
                name = str(raw.tag).removeprefix(_TAG)
                self._faults.add(where, f"{text} is not valid for the YAML type {name}")
        return Node(where=where, value=value, text=text)

    def _reject_tag(self, raw: yaml.Node, where: Where) -> None:
        shown = str(raw.tag).replace(_TAG, "!!", 1)
        self._faults.add(
            where, f"the YAML type {shown} is not supported", "write it in quotes, as plain text"
        )


def quoted(node: Node) -> str:
    """Return a hint to write a scalar in quotes; empty if the node is not a scalar."""
    if node.value is None or isinstance(node.value, (tuple, Mapping)):
        return ""
    return f'write it in quotes: "{node.text}"'


_NEAR = 0.8  # similarity: one of five letters differs, or two of six are swapped
_OTHER_LETTERS = 2


class Faults:
    """All faults found so far, in all files; reading continues after a fault."""

    def __init__(self) -> None:
        self.found: list[Fault] = []

    def add(self, where: Where, problem: str, valid: str = "") -> None:
        """Add a fault at `where`; `valid` describes what is accepted there."""
        self.found.append(
            Fault(file=where.file, line=where.line, key=where.key, problem=problem, valid=valid)
        )


def is_near(word: str, names: Iterable[str]) -> bool:
    """Return whether a word is probably a misspelling of one of `names`."""
    alike = [name for name in names if abs(len(name) - len(word)) <= _OTHER_LETTERS]
    return bool(suggestion(word, alike, cutoff=_NEAR))


_ABBREVIATION = 3  # letters that say which name is meant


def suggest(word: str, names: Iterable[str]) -> str:
    """Return a hint for `word`: the most similar of `names`, if any, and the list of all names."""
    known = list(names)
    near = suggestion(word, known, "{}")
    if len(word) >= _ABBREVIATION:
        near = near or next((name for name in known if name.startswith(word)), "")
    listed = f"valid: {', '.join(known)}" if known else "none is declared yet"
    return f'did you mean "{near}"? {listed}' if near else listed
