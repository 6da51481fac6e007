"""JSON Schemas of the input files, for editors, and of evidence: `build-images schema`.

They are kept in docs/schema/.

The shapes of the files come from their readers (builder.load.schemas), the blocks and arguments
from hpccm and the blocks of a site's own that are installed (builder.compile.spec). What a schema
lets pass, loading may still refuse: a schema knows no other file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from builder.compile.spec import catalogue, kinds
from builder.compile.spec.registered import registered_names
from builder.compile.spec.rules import TOOLCHAIN_VARIABLES, TOOLCHAINS
from builder.host.records import host_of
from builder.load import schemas
from builder.load.contracts import contract_of_node
from builder.load.document import Node
from builder.load.faults import Faults
from builder.load.schemas import file_schema, learnt, when_schema
from builder.load.toolkits import ARGUMENTS
from builder.model import MPI_ROUTES, OPTIONAL
from builder.trust.policy.cases import case_of
from builder.trust.policy.reading import policy_of

DIALECT = "http://json-schema.org/draft-07/schema#"  # what editors' YAML language server reads
_TITLES = {
    "recipe": "A recipe of build-images: recipes/NAME.yaml",
    "base": "A base image of build-images: base-images/NAME.yaml",
    "matrix": "The matrix of build-images: matrix.yaml",
    "checks": "The checks of build-images: tests/images/checks.yaml",
    "site": "What differs at a site of build-images: site.yaml",
    "host": "A host on record: build-images check-host --record",
    "host-contract": "What an image needs of a host: /opt/build-images/host-contract.json",
    "policy": "What a site asks of an image before it is pulled: policy.yaml",
    "policy-case": "A recorded case for build-images policy test",
    "evidence": "What build-images found of an image: evidence/*.json",
}
_OF_HOSTS: Mapping[str, Callable[[Node, Faults], object]] = {
    "host": host_of,
    "host-contract": contract_of_node,
    "policy": policy_of,
    "policy-case": case_of,
}
KINDS = (*schemas.KINDS, *_OF_HOSTS)
RESULTS = ("evidence",)
_TEMPLATE = {"type": "string", "pattern": r"\{\{|\{%"}  # may give any kind of value
_TEXT: dict[str, object] = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_BY_KIND: Mapping[str, dict[str, object]] = {
    kinds.BOOLEAN: {"anyOf": [{"type": "boolean"}, _TEMPLATE]},
    kinds.TEXT: _TEXT,
    kinds.LIST: {"anyOf": [_TEXTS, _TEMPLATE]},
    kinds.MAPPING: {
        "anyOf": [
            {"type": "object", "additionalProperties": {"type": ["string", "integer", "boolean"]}},
            _TEMPLATE,
        ]
    },
    kinds.FLAG: {"type": ["boolean", "string"]},
    kinds.TEXT_OR_LIST: {"anyOf": [_TEXT, _TEXTS]},
    kinds.TEXT_OR_NUMBER: {"type": ["string", "integer"]},
    kinds.TOOLCHAIN: {
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
# The arguments of the blocks that are not hpccm's; builder.load.toolkits says them in words.
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


def schema(kind: str) -> dict[str, object]:
    """The JSON Schema of one of `KINDS` or `RESULTS`."""
    if kind == "evidence":
        from builder.verify.evidence_schema import evidence_schema  # noqa: PLC0415 - for it alone

        return {"$schema": DIALECT, "title": _TITLES[kind], **evidence_schema()}
    shape = learnt(_OF_HOSTS[kind]) if kind in _OF_HOSTS else file_schema(kind)
    made = {"$schema": DIALECT, "title": _TITLES[kind], **shape}
    if kind != "recipe":
        return made
    kinds = {_name(words): {"description": words, **value} for words, value in _BY_KIND.items()}
    return {**made, "definitions": {"block": _block(), **kinds}}


def text(kind: str) -> str:
    """The schema as it is printed, and written to docs/schema/KIND.json."""
    return json.dumps(schema(kind), indent=1, ensure_ascii=False) + "\n"


def _block() -> dict[str, object]:
    """One block with its arguments, and perhaps for which cells it is."""
    key, condition = when_schema()
    blocks = {name: _toolkit(name) for name in ARGUMENTS}
    blocks |= {name: _arguments(name) for name in [*catalogue.names(), *registered_names()]}
    return {
        "type": "object",
        "properties": {key: condition, **dict(sorted(blocks.items()))},
        "additionalProperties": False,
        "anyOf": [{"required": [name]} for name in sorted(blocks)],
        "minProperties": 1,
        "maxProperties": 2,
    }


def _toolkit(name: str) -> dict[str, object]:
    return {
        "type": ["object", "null"],
        "properties": {
            argument: {"description": words, **_TOOLKITS[argument]}
            for argument, words in ARGUMENTS[name].items()
        },
        "additionalProperties": False,
    }


def _arguments(name: str) -> dict[str, object]:
    block = catalogue.block(name)
    assert block is not None
    features = {"^(enable|disable|with|without)_": _reference(kinds.FLAG)}
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


__all__ = ["KINDS", "RESULTS", "schema", "text"]
