"""What each block that recipes can name takes: its arguments, of which kind, with which defaults.

All of it follows from hpccm's sources (builder.compile.spec.arguments). But importing hpccm takes
longer than loading a project, so what was read of one version is kept in a file beside this one.
With another version of hpccm the sources are read anew; so are blocks of a site's own, always.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from builder.compile.spec.kinds import Block
from builder.compile.spec.registered import registered_block

KEPT = Path(__file__).with_name("catalogue.json")


@functools.cache
def hpccm_version() -> str:
    """The version of the installed hpccm, as its file `version.py` has it."""
    found = importlib.util.find_spec("hpccm")
    for folder in (found and found.submodule_search_locations) or ():
        text = Path(folder, "version.py").read_text(encoding="utf-8")
        if version := re.search(r"""^__version__ *= *['"]([^'"]+)['"]""", text, re.MULTILINE):
            return version[1]
    raise ModuleNotFoundError("hpccm is not installed, or has no version", name="hpccm")


def names() -> tuple[str, ...]:
    """The names of hpccm's blocks and primitives, sorted; a site's own are not among them."""
    if kept := _kept():
        return tuple(kept)
    from builder.compile.spec.classes import block_classes  # noqa: PLC0415 - imports hpccm

    return tuple(block_classes())


def block(name: str) -> Block | None:
    """What a block takes: hpccm's, or one that an installed package registers; None if neither."""
    kept = _kept()
    if name in kept:
        return kept[name]
    if kept and registered_block(name) is None:
        return None
    from builder.compile.spec.arguments import read_block  # noqa: PLC0415 - imports hpccm
    from builder.compile.spec.classes import block_class  # noqa: PLC0415

    cls = block_class(name)
    return read_block(cls) if cls else None


def text() -> str:
    """What the file should be: the installed hpccm's blocks, one a line."""
    from builder.compile.spec.arguments import read_block  # noqa: PLC0415 - imports hpccm
    from builder.compile.spec.classes import block_classes  # noqa: PLC0415

    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(asdict(read_block(cls)))}"
        for name, cls in block_classes().items()
    )
    return f'{{"hpccm": {json.dumps(hpccm_version())}, "blocks": {{\n{lines}\n}}}}\n'


@functools.cache
def _kept() -> Mapping[str, Block]:
    """The blocks in the file, by name; none where it is of another hpccm than the installed."""
    found = json.loads(KEPT.read_bytes())
    if found["hpccm"] != hpccm_version():
        return {}
    return {name: Block(**about) for name, about in found["blocks"].items()}
