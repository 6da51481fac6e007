"""Readers: functions from a node to a typed value, which report faults and continue.

After a fault a reader returns an empty value of its type, so that the rest of the file can be
read. A project with faults is never returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from builder.load.document import Faults, Node, Probe, inside, key_node, note, quoted, suggest
from builder.model import architectures, versions
from builder.model.architectures import ARCHITECTURE_ALIASES, ARCHITECTURES
from builder.model.exact_json import member

T = TypeVar("T")
Reader = Callable[[Node, Faults], T]

# Names and versions become parts of image tags, file names and test ids.
# https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md#pulling-manifests
_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9._-]*")
_IDENTIFIER_RULE = "valid: lowercase letters, digits and . _ -, beginning with a letter or digit"
# https://pubs.opengroup.org/onlinepubs/9699919799/basedefs/V1_chap08.html
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VERSION_RULE = 'valid: a PEP 440 version of digits, dots and lowercase letters: "1.0", "5.0.7rc1"'


class Table:
    """A mapping in a file. Its keys are checked at once, its values when they are read."""

    def __init__(
        self, node: Node, faults: Faults, *, required: Sequence[str], optional: Sequence[str] = ()
    ) -> None:
        self._faults = faults
        self._probe = node if isinstance(node, Probe) else None
        entries = {} if self._probe else mapping(node, faults)
        self._entries = entries or {}
        names = (*required, *optional)
        note(
            node,
            type="object",
            properties={key: {} for key in names},
            required=list(required),
            additionalProperties=False,
        )
        for key, entry in self._entries.items():
            if key not in names:
                faults.add(entry.where, "unknown key", suggest(key, names))
        for key in required:
            if entries is not None and key not in entries:
                needed = f"required keys: {', '.join(required)}"
                faults.add(inside(node.where, key), "this key is missing", needed)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def read(self, key: str, reader: Reader[T], absent: T) -> T:
        """Return the value of a key as read by `reader`; `absent` if the key is missing."""
        if self._probe:
            probe = self._probe.child()
            reader(probe, self._faults)
            member(self._probe.schema, "properties")[key] = probe.schema
        node = self._entries.get(key)
        return absent if node is None else reader(node, self._faults)

    def entry(self, key: str) -> Node | None:
        """Return the node of a key; None if the key is missing."""
        return self._entries.get(key)


def record(
    kind: Callable[..., T],
    required: Mapping[str, Reader[object]],
    optional: Mapping[str, Reader[object]] = MappingProxyType({}),
    *,
    fields: Mapping[str, str] = MappingProxyType({}),
    placed: bool = False,
) -> Reader[T]:
    """Return a reader of a mapping that calls `kind` with the values of the keys as arguments.

    `fields` maps keys to arguments with another name; a key with an empty name is not passed on.
    With `placed`, `where` is the place of the mapping. Absent optional keys are not passed on.
    """

    def read(node: Node, faults: Faults) -> T:
        table = Table(node, faults, required=tuple(required), optional=tuple(optional))
        values: dict[str, object] = {"where": node.where}
        absent = Node(where=node.where, value="")
        for key, reader in {**required, **optional}.items():
            if isinstance(node, Probe):
                table.read(key, reader, None)
            if key in table:
                values[fields.get(key, key)] = table.read(key, reader, None)
            elif key in required:  # the fault is reported; any value of the right type will do
                values[fields.get(key, key)] = reader(absent, Faults())
        dropped = {""} if placed else {"", "where"}
        return kind(**{field: value for field, value in values.items() if field not in dropped})

    return read


def described(words: str, reader: Reader[T]) -> Reader[T]:
    """Return a reader with a description of its value, for JSON Schemas."""

    def read(node: Node, faults: Faults) -> T:
        note(node, description=words)
        return reader(node, faults)

    return read


def keyed(key: Reader[str], entry_of: Callable[[str], Reader[T]]) -> Reader[tuple[T, ...]]:
    """Return a reader of the entries of a mapping; `entry_of` returns the reader for a key."""

    def read(node: Node, faults: Faults) -> tuple[T, ...]:
        return tuple(
            entry_of(key(key_node(name, entry), faults))(entry, faults)
            for name, entry in (mapping(node, faults) or {}).items()
        )

    return read


def mapping(node: Node, faults: Faults) -> Mapping[str, Node] | None:
    """Return the entries of a mapping; None, with a fault, if the node is not a mapping."""
    if isinstance(node, Probe):
        child = node.child()
        names = child.key.schema if child.key else {}
        note(node, type="object", additionalProperties=child.schema, propertyNames=names)
        return {"": child}
    if isinstance(node.value, Mapping):
        return node.value
    _wrong_type(node, faults, "a mapping (key: value)")
    return None


def text(node: Node, faults: Faults) -> str:
    """Read text that is not blank."""
    value = any_text(node, faults)
    note(node, pattern=r"\S")
    if isinstance(node.value, str) and not value.strip():
        faults.add(node.where, "the text is empty")
    return value


def line(node: Node, faults: Faults) -> str:
    """Read one line of text, not blank, as comments and sections of the specs need it."""
    value = text(node, faults)
    if "\n" in value.strip():
        faults.add(node.where, "this text has several lines", "write it in one line")
    return value.strip()


def any_text(node: Node, faults: Faults) -> str:
    """Read text, which may be blank."""
    note(node, type="string")
    if isinstance(node.value, str):
        return node.value
    _wrong_type(node, faults, "text", quoted(node))
    return ""


def version(node: Node, faults: Faults) -> str:
    """Read a PEP 440 version that can be part of an image identifier."""
    value = text(node, faults)
    note(node, pattern=f"^{_IDENTIFIER.pattern}$")
    if value and not is_version(value):
        faults.add(node.where, f'"{value}" is not a version', _VERSION_RULE)
    return value


def is_version(value: str) -> bool:
    """Return whether `value` is a PEP 440 version that can be part of an image identifier."""
    return versions.is_version(value) and _IDENTIFIER.fullmatch(value) is not None


def architecture(node: Node, faults: Faults) -> str:
    """Read any name of an architecture; return its name in `uname -m`."""
    value = text(node, faults)
    note(node, enum=[*ARCHITECTURES, *ARCHITECTURE_ALIASES])
    known = architectures.architecture(value)
    if value and not known:
        valid = suggest(value, ARCHITECTURES)
        faults.add(node.where, f'unknown architecture: "{value}"', valid)
    return known.name if known else ""


def matching(pattern: re.Pattern[str], problem: str, valid: str) -> Reader[str]:
    """Return a reader of text that `pattern` matches in full; the fault is `"TEXT" PROBLEM`."""

    def read(node: Node, faults: Faults) -> str:
        value = text(node, faults)
        note(node, pattern=f"^({pattern.pattern})$")
        if not value or pattern.fullmatch(value):
            return value
        faults.add(node.where, f'"{value}" {problem}', valid)
        return ""

    return read


# A name that can be part of an image identifier.
identifier = matching(_IDENTIFIER, "is not a valid name", _IDENTIFIER_RULE)
variable = matching(
    _VARIABLE,
    "is not a valid name of an environment variable",
    "valid: letters, digits and _, not beginning with a digit",
)


def positive(title: str, valid: str) -> Reader[int]:
    """Return a reader of a whole number above 0."""

    def read(node: Node, faults: Faults) -> int:
        note(node, type="integer", minimum=1)
        if isinstance(node.value, int) and not isinstance(node.value, bool) and node.value > 0:
            return node.value
        faults.add(node.where, f"expected {title}, found {node.describe()}", valid)
        return 0

    return read


def one_of(names: Collection[str] | None, title: str) -> Reader[str]:
    """Return a reader of one of `names`, or of any text if `names` is None (not known)."""

    def read(node: Node, faults: Faults) -> str:
        value = text(node, faults)
        if names is not None:
            note(node, enum=list(names))
        if value and names is not None and value not in names:
            faults.add(node.where, f'unknown {title}: "{value}"', suggest(value, names))
        return value

    return read


def list_of(
    item: Reader[T | None], *, least: int = 0, distinct: bool = False
) -> Reader[tuple[T, ...]]:
    """Return a reader of a list of at least `least` (0 or 1) items, all different if `distinct`.

    Items read as None are left out.
    """

    def read(node: Node, faults: Faults) -> tuple[T, ...]:
        if isinstance(node, Probe):
            item(child := node.child(), faults)
            limits: dict[str, object] = {"minItems": 1} if least else {}
            limits |= {"uniqueItems": True} if distinct else {}
            note(node, type="array", items=child.schema, **limits)
        if not isinstance(node.value, tuple):
            _wrong_type(node, faults, "a list", _bracketed(node))
            return ()
        if len(node.value) < least:
            faults.add(node.where, "the list is empty", "write at least one value")
        values = [item(entry, faults) for entry in node.value]
        if distinct:
            _note_repeats(node.value, values, faults)
        return tuple(value for value in values if value is not None)

    return read


def one_or_more(item: Reader[T]) -> Reader[tuple[T, ...]]:
    """Return a reader of a single item, or of a list of at least one."""
    several = list_of(item, least=1)

    def read(node: Node, faults: Faults) -> tuple[T, ...]:
        if isinstance(node, Probe):
            several(child := node.child(), faults)
            note(node, anyOf=[child.schema["items"], child.schema])
            return ()
        if isinstance(node.value, tuple):
            return several(node, faults)
        return (item(node, faults),)

    return read


def words(item: Reader[T], *, least: int = 0, distinct: bool = False) -> Reader[tuple[T, ...]]:
    """Return a reader of a list as `list_of` reads it, or of a text with its words as items."""
    several = list_of(item, least=least, distinct=distinct)

    def read(node: Node, faults: Faults) -> tuple[T, ...]:
        if isinstance(node, Probe):
            several(child := node.child(), faults)
            note(node, anyOf=[child.schema, {"type": "string"}])
            return ()
        if isinstance(node.value, str):
            nodes = (Node(where=node.where, value=word, text=word) for word in node.value.split())
            node = Node(where=node.where, value=tuple(nodes))
        return several(node, faults)

    return read


def mapping_of(item: Reader[T], *, key: Reader[str] | None = None) -> Reader[dict[str, T]]:
    """Return a reader of a mapping with any keys, or with keys that `key` reads."""

    def read(node: Node, faults: Faults) -> dict[str, T]:
        values: dict[str, T] = {}
        for name, entry in (mapping(node, faults) or {}).items():
            shown = key(key_node(name, entry), faults) if key else name
            if shown in values:
                faults.add(entry.where, f"duplicate key: {shown}, under two names")
            values[shown] = item(entry, faults)
        return values

    return read


def _note_repeats(nodes: Sequence[Node], values: Sequence[T], faults: Faults) -> None:
    for index, (node, value) in enumerate(zip(nodes, values, strict=True)):
        if value and value in values[:index]:
            faults.add(node.where, f"duplicate item: {getattr(value, 'name', value)}")


def _bracketed(node: Node) -> str:
    if isinstance(node.value, str):
        return f"write it in brackets: [{node.text}]"
    return "remove the key, or write []" if node.value is None else ""


def _wrong_type(node: Node, faults: Faults, expected: str, valid: str = "") -> None:
    faults.add(node.where, f"expected {expected}, found {node.describe()}", valid)
