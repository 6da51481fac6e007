"""JSON Schema of recipes' blocks: hpccm's, a site's own that are installed, and this project's."""

from __future__ import annotations

from collections.abc import Mapping

from builder.compile.spec import catalogue
from builder.compile.spec.rules import TOOLCHAIN_VARIABLES, TOOLCHAINS
from builder.model import MPI_ROUTES, OPTIONAL

_TEMPLATE = {"type": "string", "pattern": r"\{\{|\{%"}  # may give any kind of value
_TEXT: dict[str, object] = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_BY_KIND: Mapping[str, dict[str, object]] = {
    catalogue.BOOLEAN: {"anyOf": [{"type": "boolean"}, _TEMPLATE]},
    catalogue.TEXT: _TEXT,
    catalogue.LIST: {"anyOf": [_TEXTS, _TEMPLATE]},
    catalogue.MAPPING: {
        "anyOf": [
            {"type": "object", "additionalProperties": {"type": ["string", "integer", "boolean"]}},
            _TEMPLATE,
        ]
    },
    catalogue.FLAG: {"type": ["boolean", "string"]},
    catalogue.TEXT_OR_LIST: {"anyOf": [_TEXT, _TEXTS]},
    catalogue.TEXT_OR_NUMBER: {"type": ["string", "integer"]},
    catalogue.TOOLCHAIN: {
        "anyOf": [
            {"enum": [*TOOLCHAINS, "mpi"]},
            {
                "type": "object",
                "properties": dict.fromkeys(TOOLCHAIN_VARIABLES, _TEXT),
                "additionalProperties": False,
            },
            _TEMPLATE,
        ]
    },
}
# The arguments of the blocks that are not hpccm's; builder.load.bases says them in words.
_WITH_EXTRA: dict[str, object] = {"enum": [True, False, OPTIONAL]}
_TOOLKITS: Mapping[str, dict[str, object]] = {
    "capabilities": {
        "type": "array",
        "minItems": 1,
        "items": {"type": "string", "pattern": "^[0-9]+$"},
    },
    "cudnn": _WITH_EXTRA,
    "nccl": _WITH_EXTRA,
    "routes": {"type": "array", "minItems": 1, "items": {"enum": list(MPI_ROUTES)}},
    "sdk": {
        "type": "object",
        "properties": {"version": {"type": "string"}, "eula": {"const": True}},
        "required": ["version", "eula"],
        "additionalProperties": False,
    },
    "source": {"type": "object"},
}


def block_schemas(
    when: tuple[str, Mapping[str, object]], toolkits: Mapping[str, Mapping[str, str]]
) -> dict[str, object]:
    """Return the schemas of a block and of its arguments' kinds, by their names.

    `when` is the key of a block's condition, with its schema. `toolkits` are the blocks that are
    not hpccm's: each argument by its name, described in words.
    """
    shapes = {_name(words): {"description": words, **shape} for words, shape in _BY_KIND.items()}
    return {"block": _block(when, toolkits), **shapes}


def _block(
    when: tuple[str, Mapping[str, object]], toolkits: Mapping[str, Mapping[str, str]]
) -> dict[str, object]:
    key, condition = when
    blocks = {name: _toolkit(arguments) for name, arguments in toolkits.items()}
    names = [*catalogue.hpccm_blocks(), *catalogue.registered_names()]
    blocks |= {name: _arguments(name) for name in names}
    return {
        "type": "object",
        "properties": {key: condition, **dict(sorted(blocks.items()))},
        "additionalProperties": False,
        "anyOf": [{"required": [name]} for name in sorted(blocks)],
        "minProperties": 1,
        "maxProperties": 2,
    }


def _toolkit(arguments: Mapping[str, str]) -> dict[str, object]:
    return {
        "type": ["object", "null"],
        "properties": {
            argument: {"description": words, **_TOOLKITS[argument]}
            for argument, words in arguments.items()
        },
        "additionalProperties": False,
    }


def _arguments(name: str) -> dict[str, object]:
    block = catalogue.block_of(name)
    assert block is not None
    features = {"^(enable|disable|with|without)_": _reference(catalogue.FLAG)}
    return {
        "type": ["object", "null"],
        "properties": {argument: _reference(kind) for argument, kind in block.kinds.items()},
        **({"patternProperties": features} if block.features else {}),
        "additionalProperties": False,
    }


def _reference(kind: str) -> dict[str, object]:
    return {"$ref": f"#/definitions/{_name(kind)}"}


def _name(kind: str) -> str:
    return kind.replace(",", "").replace(" ", "-")
