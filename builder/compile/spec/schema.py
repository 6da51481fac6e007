"""JSON Schema of recipes' blocks: hpccm's, a site's installed ones, and this project's."""

from __future__ import annotations

from collections.abc import Mapping

from builder.compile.spec import catalogue
from builder.compile.spec.rules import TOOLCHAIN_VARIABLES, TOOLCHAINS
from builder.model import CUDA_LIBRARIES, MPI_ROUTES
from builder.system.files import table_beside


def _shapes() -> tuple[dict[str, dict[str, object]], dict[str, dict[str, object]]]:
    """Return the schemas of shapes.yaml: arguments by kind, and the toolkits' arguments."""
    shapes = table_beside(__file__, "shapes.yaml")
    names, variables, _template = shapes["kinds"][catalogue.TOOLCHAIN]["anyOf"]
    names["enum"] = [*TOOLCHAINS, "mpi"]
    variables["properties"] = dict.fromkeys(TOOLCHAIN_VARIABLES, shapes["kinds"][catalogue.TEXT])
    shapes["toolkits"]["routes"]["items"]["enum"] = list(MPI_ROUTES)
    shapes["toolkits"]["libraries"]["items"]["enum"] = list(CUDA_LIBRARIES)
    return shapes["kinds"], shapes["toolkits"]


def block_schemas(
    when: tuple[str, Mapping[str, object]], toolkits: Mapping[str, Mapping[str, str]]
) -> dict[str, object]:
    """Return the schemas of a block and of its arguments' kinds, by their names.

    `when` is the key of a block's condition, with its schema. `toolkits` are the blocks that are
    not hpccm's: each argument by its name, described in words.
    """
    kinds, of_toolkits = _shapes()
    shapes = {_name(words): {"description": words, **shape} for words, shape in kinds.items()}
    key, condition = when
    blocks = {name: _toolkit(arguments, of_toolkits) for name, arguments in toolkits.items()}
    names = [*catalogue.hpccm_blocks(), *catalogue.registered_names()]
    blocks |= {name: _arguments(name) for name in names}
    block = {
        "type": "object",
        "properties": {key: condition, **dict(sorted(blocks.items()))},
        "additionalProperties": False,
        "anyOf": [{"required": [name]} for name in sorted(blocks)],
        "minProperties": 1,
        "maxProperties": 2,
    }
    return {"block": block, **shapes}


def _toolkit(
    arguments: Mapping[str, str], shapes: Mapping[str, Mapping[str, object]]
) -> dict[str, object]:
    return {
        "type": ["object", "null"],
        "properties": {
            argument: {"description": words, **shapes[argument]}
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
