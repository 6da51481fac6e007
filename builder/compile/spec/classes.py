"""The classes of the blocks that a recipe can name."""

from __future__ import annotations

import inspect

import hpccm.building_blocks
import hpccm.primitives

from builder.compile.spec.copying import copy
from builder.compile.spec.pip import pip
from builder.compile.spec.registered import registered_block

PRIMITIVES = ("comment", "copy", "environment", "label", "raw", "shell", "user", "workdir")


def block_classes() -> dict[str, type]:
    """The blocks and primitives that every recipe can name."""
    blocks = {
        name: value
        for name, value in vars(hpccm.building_blocks).items()
        if inspect.isclass(value) and not name.startswith("_")
    }
    blocks.update({name: getattr(hpccm.primitives, name) for name in PRIMITIVES})
    blocks["copy"] = copy
    blocks["pip"] = pip
    return dict(sorted(blocks.items()))


def block_class(name: str) -> type | None:
    """The class of a block: hpccm's, or one that an installed package registers."""
    return block_classes().get(name) or registered_block(name)
