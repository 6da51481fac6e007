"""Records as JSON: frozen dataclasses are read from parsed JSON, and written as JSON values.

A key is a field's name, or the `key` of `named`. Keys that a record does not know are ignored, or
kept in its field `unknown()`. A field may be a text, a number, a record, None, a `Path`,
`tuple[X, ...]`, `Mapping[str, X]` or `object`, which is any JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from inspect import getdoc
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Read = Callable[[object, str], object]  # a value and where it stands, `artifacts.oci.size`
_KINDS: Mapping[type, tuple[str, tuple[type, ...]]] = {
    str: ("a text", (str,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    bool: ("true or false", (bool,)),
}
_NAMES: Mapping[object, Mapping[str, object]] = {  # for a JSON Schema
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Path: {"type": "string"},
    NoneType: {"type": "null"},
    object: {},
}


def optional() -> Any:
    """Return a field that is None where its key is absent, and is not written then."""
    return field(default=None, metadata={"optional": True})


def named(key: str, *, default: object = MISSING) -> Any:
    """Return a field whose key is not a Python name."""
    return field(default=default, metadata={"key": key})


def unknown() -> Any:
    """Return the field for unknown keys, which are written back unchanged."""
    return field(default_factory=dict, metadata={"unknown": True})


def read(kind: Callable[..., T], value: object, where: str = "") -> T:
    """Return the record in parsed JSON.

    Raises `ValueError` that says which key is missing, or of another kind than its field.
    """
    return cast("T", _reader(kind)(value, where))


def write(record: object) -> dict[str, object]:
    """Return the JSON object of a record, its keys in the order of the fields."""
    written: dict[str, object] = {}
    for part in fields(record):  # type: ignore[arg-type]  # of a dataclass
        value = getattr(record, part.name)
        if "unknown" in part.metadata:
            written |= value
        elif not ("optional" in part.metadata and value is None):
            written[_key(part)] = plain(value)
    return written


def plain(value: object) -> object:
    """Return a value with records in it as JSON values."""
    if is_dataclass(value):
        return write(value)
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def schema_of_record(kind: Any) -> dict[str, object]:
    """Return the JSON Schema of the objects that `write` returns for records of this kind.

    Keys with a default are not required: earlier versions may not have written them.
    """
    hints, properties = get_type_hints(kind), dict[str, object]()
    for part in fields(kind):
        if "unknown" not in part.metadata:
            properties[_key(part)] = _schema(hints[part.name])
            if part.name == "schema" and part.default is not MISSING:
                properties["schema"] = {"const": part.default}
    return {
        "type": "object",
        "description": " ".join((getdoc(kind) or "").split()),
        "properties": properties,
        "required": _required(kind),
        "additionalProperties": any("unknown" in part.metadata for part in fields(kind)),
    }


def _schema(hint: object) -> dict[str, object]:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in {Union, UnionType}:
        return {"anyOf": [_schema(part) for part in arguments]}
    if kind is tuple:
        return {"type": "array", "items": _schema(arguments[0])}
    if kind is Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    return schema_of_record(hint) if is_dataclass(hint) else dict(_NAMES[hint])


def _required(kind: type) -> list[str]:
    """Return the keys of the fields without a default."""
    return [
        _key(part)
        for part in fields(kind)
        if part.default is MISSING and part.default_factory is MISSING
    ]


def _key(part: Field[object]) -> str:
    return str(part.metadata.get("key", part.name))


@cache
def _reader(hint: Any) -> Read:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in {Union, UnionType}:
        [inner] = [_reader(part) for part in arguments if part is not NoneType]
        return lambda value, where: None if value is None else inner(value, where)
    if kind is tuple:
        return _list_reader(_reader(arguments[0]))
    if kind is Mapping:
        return _mapping_reader(_reader(arguments[1]))
    return _record_reader(hint) if is_dataclass(hint) else _plain_reader(hint)


def _plain_reader(kind: Any) -> Read:
    if kind is object:
        return lambda value, _: value
    if kind is Path:
        return lambda value, where: Path(str(_plain_reader(str)(value, where)))
    title, kinds = _KINDS[kind]

    def read_plain(value: object, where: str) -> object:
        if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
            raise _wrong(where, title, value)
        return value

    return read_plain


def _list_reader(inner: Read) -> Read:
    def read_list(value: object, where: str) -> object:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        return tuple(inner(part, f"{where}[{number}]") for number, part in enumerate(value))

    return read_list


def _mapping_reader(inner: Read) -> Read:
    def read_mapping(value: object, where: str) -> object:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        return {key: inner(part, _below(where, key)) for key, part in value.items()}

    return read_mapping


def _record_reader(kind: Any) -> Read:
    hints = get_type_hints(kind)
    rest = next((part.name for part in fields(kind) if "unknown" in part.metadata), "")
    readers = {
        _key(part): (part.name, _reader(hints[part.name]))
        for part in fields(kind)
        if part.name != rest
    }
    required = _required(kind)

    def read_record(value: object, where: str) -> object:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        for key in required:
            if key not in value:
                raise ValueError(f"{_below(where, key)}: missing")
        values = {
            name: reader(value[key], _below(where, key))
            for key, (name, reader) in readers.items()
            if key in value
        }
        if rest:
            values[rest] = {key: part for key, part in value.items() if key not in readers}
        return kind(**values)

    return read_record


def _below(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _wrong(where: str, expected: str, value: object) -> ValueError:
    shown = repr(value)
    return ValueError(f"{where or 'the file'}: expected {expected}, not {shown[:60]}")
