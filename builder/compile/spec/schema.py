"""Recipes' blocks described, as JSON Schema and for people: hpccm's, a site's, this project's.

All words are those of the blocks' own documentation, and of the readers of recipes. So are the
examples: the first in a block's documentation that a recipe can have, as YAML.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from textwrap import TextWrapper, indent

import yaml

from builder.compile.spec import catalogue
from builder.compile.spec.hpccm_blocks import block_classes
from builder.compile.spec.rules import TOOLCHAIN_VARIABLES, TOOLCHAINS, block_faults
from builder.model import CUDA_LIBRARIES, MPI_ROUTES, BlockUse, Where
from builder.system.files import table_beside

Toolkits = Mapping[str, Mapping[str, str]]  # blocks that are not hpccm's: arguments, in words
_CODE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)
_EXAMPLES: Mapping[str, Mapping[str, object]] = {  # where the documentation has none for a recipe
    "conda": {"version": "24.1.2-0", "python_subversion": "py311", "eula": True},
    "copy": {"src": "sample.conf", "dest": "/etc/"},
    "cuda": {"capabilities": ["70"], "cudnn": "optional"},
    "generic_build": {"url": "https://site.example/a-1.0.tar.gz", "build": ["make"]},
    "hpcx": {"version": "2.16", "cuda": "12"},
    "intel_psxe": {"tarball": "local:psxe.tgz", "license": "local:psxe.lic", "eula": True},
    "mpi": {"routes": ["package", "source"], "source": {"version": "5.0.7"}},
    "nvhpc": {"version": "23.9", "cuda": "12.2", "eula": True},
    "pip": {"packages": ["numpy==2.2.4"], "venv": "/opt/venv"},
    "pgi": {"tarball": "local:pgi.tar.gz", "eula": True},
}
_ABOUT = {
    "cuda": "The `cuda` block installs the CUDA toolkit of the cell, by the base's way to it.",
    "mpi": "The `mpi` block installs the MPI of the cell, from packages or from its source.",
}
_WIDTH = 78


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockHelp:
    """A block: its arguments by name, each as its kind and a description, which may be empty.

    `example` is an entry of a recipe's list. A recipe cannot have a block that is `refused`.
    """

    name: str
    about: str
    arguments: Mapping[str, tuple[str, str]]
    example: str = ""
    refused: str = ""
    limits: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The first sentence of the description, without its beginning."""
        sentence = re.split(r"(?<=\.) ", self.about, maxsplit=1)[0]
        return re.sub(r"^The `\w+` (building block|block|primitive) ", "", sentence)

    def as_text(self) -> str:
        """Return the description as it is printed."""
        lines = [self.name, *_wrapped(self.about, 2)]
        if self.refused:
            lines.append(f"  recipes cannot have it: {self.refused}")
        lines += [f"  limit: {text}" for text in self.limits]
        lines += ["", "arguments:"] if self.arguments else []
        for name, (kind, words) in self.arguments.items():
            lines += [f"  {name}: {kind or words}", *(_wrapped(words, 6) if kind else ())]
        return "\n".join([*lines, *(["", "example:", self.example] if self.example else [])])


def _wrapped(text: str, columns: int) -> list[str]:
    """Return the lines of a text, indented by some columns."""
    margin = " " * columns
    wrapper = TextWrapper(_WIDTH, margin, margin, break_on_hyphens=False, break_long_words=False)
    return wrapper.wrap(text)


def block_help(name: str, toolkits: Toolkits) -> BlockHelp | None:
    """Return the description of a block; None if there is none of this name."""
    if name in toolkits:
        arguments = {key: ("", words) for key, words in toolkits[name].items()}
        example = _as_yaml(name, _EXAMPLES[name])
        return BlockHelp(name=name, about=_ABOUT[name], arguments=arguments, example=example)
    block, cls = catalogue.block_of(name), _class_of(name)
    if block is None or cls is None:
        return None
    refused = catalogue.notes_on(name).refused
    limits = (f"{row.reason} ({row.source})" for row in catalogue.limits() if row.block == name)
    return BlockHelp(
        name=name,
        about=_plain((cls.__doc__ or "").partition("\n\n")[0]),
        arguments={key: (kind, catalogue.words_on(cls, key)) for key, kind in block.kinds.items()},
        example="" if refused else _example(name, cls),
        refused=refused,
        limits=tuple(dict.fromkeys(limits)),
    )


def block_list(toolkits: Toolkits) -> list[BlockHelp]:
    """Return the descriptions of all blocks that recipes can have, by name."""
    names = {*toolkits, *catalogue.hpccm_blocks(), *catalogue.registered_names()}
    blocks = (block_help(name, toolkits) for name in sorted(names))
    return [each for each in blocks if each and not each.refused]


def _class_of(name: str) -> type | None:
    return block_classes().get(name) or catalogue.registered_block(name)


def _plain(text: str) -> str:
    """Return Markdown as one line of text."""
    return re.sub(r"\[(.+?)\]\(.+?\)", r"\1", " ".join(text.split()))


def _example(name: str, cls: type) -> str:
    """Return the first example of the documentation that a recipe can have."""
    calls = [*_calls(name, cls.__doc__ or "")]
    version = catalogue.hpccm_blocks()[name].defaults.get("version", "") if calls else ""
    dated = [{**call, "version": version} for call in calls if version and "version" not in call]
    for arguments in (_EXAMPLES.get(name), *calls, *dated):
        use = BlockUse(name=name, arguments=arguments or {}, where=Where(file="", line=1))
        if arguments is not None and not block_faults(use):
            return _as_yaml(name, arguments)
    return ""


def _calls(name: str, documentation: str) -> Iterator[dict[str, object]]:
    """Yield the arguments of the calls of a block in its documentation, those without objects."""
    for code in _CODE.findall(documentation):
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(code.strip())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
                    pairs = {str(word.arg): word.value for word in node.keywords}
                    yield {key: ast.literal_eval(value) for key, value in pairs.items()}


def _as_yaml(name: str, arguments: Mapping[str, object]) -> str:
    text = yaml.safe_dump(
        [{name: dict(arguments)}], sort_keys=False, width=_WIDTH, default_flow_style=None
    )
    return indent(text.rstrip("\n"), "  ")


def _shapes() -> tuple[dict[str, dict[str, object]], dict[str, dict[str, object]]]:
    """Return the schemas of shapes.yaml: arguments by kind, and the toolkits' arguments."""
    shapes = table_beside(__file__, "shapes.yaml")
    names, variables, _template = shapes["kinds"][catalogue.TOOLCHAIN]["anyOf"]
    names["enum"] = [*TOOLCHAINS, "mpi"]
    variables["properties"] = {
        name: {
            "description": f"the variable {name} of the build",
            **shapes["kinds"][catalogue.TEXT],
        }
        for name in TOOLCHAIN_VARIABLES
    }
    shapes["toolkits"]["routes"]["items"]["enum"] = list(MPI_ROUTES)
    shapes["toolkits"]["libraries"]["items"]["enum"] = list(CUDA_LIBRARIES)
    return shapes["kinds"], shapes["toolkits"]


def block_schemas(when: tuple[str, Mapping[str, object]], toolkits: Toolkits) -> dict[str, object]:
    """Return the schemas of a block and of its arguments' kinds, by their names.

    `when` is the key of a block's condition, with its schema.
    """
    kinds, of_toolkits = _shapes()
    shapes = {_name(words): {"description": words, **shape} for words, shape in kinds.items()}
    key, condition = when
    blocks = {
        name: {"description": _ABOUT[name], **_toolkit(arguments, of_toolkits)}
        for name, arguments in toolkits.items()
    }
    names = [*catalogue.hpccm_blocks(), *catalogue.registered_names()]
    blocks |= {name: _arguments(name) for name in names}
    block = {
        "type": "object",
        "properties": {
            key: {"description": "the cells that have this block (default: all)", **condition},
            **dict(sorted(blocks.items())),
        },
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
    block, cls = catalogue.block_of(name), _class_of(name)
    assert block is not None
    assert cls is not None
    properties = {
        argument: {"description": words, "allOf": [_reference(kind)]} if words else _reference(kind)
        for argument, kind in block.kinds.items()
        for words in [catalogue.words_on(cls, argument)]
    }
    features = {"^(enable|disable|with|without)_": _reference(catalogue.FLAG)}
    return {
        "type": ["object", "null"],
        "description": _plain((cls.__doc__ or "").partition("\n\n")[0]),
        "properties": properties,
        **({"patternProperties": features} if block.features else {}),
        "additionalProperties": False,
    }


def _reference(kind: str) -> dict[str, object]:
    return {"$ref": f"#/definitions/{_name(kind)}"}


def _name(kind: str) -> str:
    return kind.replace(",", "").replace(" ", "-")
