"""Blocks as text. Images that differ elsewhere share it: it is made once, and kept.

A block's text is decided by the block itself and by what hpccm is told of the image: format,
architecture, distribution, processor. A block that takes the toolchain of an earlier one is made
for each image.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass, field

import hpccm.config

from builder.compile.spec.complaints import complaints
from builder.compile.spec.downloads import Downloads, record, recorded, with_sources
from builder.compile.spec.making import made, refused
from builder.compile.spec.quirks import repeatable, target_of
from builder.compile.spec.rules import PRIMITIVES
from builder.model import BlockUse, PlannedImage, StageRecipe

_SEPARATOR = "\n\n"  # of hpccm's stages


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A block as hpccm writes it into a stage; it can stand in one in the block's place.

    `left` is what it leaves for the run-time stage, copied from the stage named `stage`.
    """

    text: str
    left: str
    stage: str
    downloads: Downloads

    def __str__(self) -> str:
        return self.text

    def runtime(self, _from: str) -> str:
        assert _from == self.stage, f"made for the stage {self.stage}, not {_from}"
        return self.left


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """One block of one image; equal to those of other images that give the same text."""

    decisive: Hashable
    use: BlockUse = field(compare=False)
    image: PlannedImage = field(compare=False)
    recipe: StageRecipe = field(compare=False)
    stage: str = field(compare=False)
    locking: bool = field(compare=False)


def layer(use: BlockUse, image: PlannedImage, recipe: StageRecipe, stage: str = "") -> Layer:
    """A block of a recipe as text, in the stage of that name; hpccm's state is the image's.

    Raises `BadInput` for what hpccm refuses, or warns of.
    """
    noted = record()
    told = (hpccm.config.get_format(), image.base.hpccm_distro, image.cell.cpu, target_of(image))
    # The objects are alive as long as the result is, so their identities say enough.
    objects = (id(use), id(image.sources), recipe.name, stage, noted.locking)
    block = _Block(
        decisive=(told, objects),
        use=use,
        image=image,
        recipe=recipe,
        stage=stage,
        locking=noted.locking,
    )
    borrows = isinstance(use.arguments.get("toolchain"), str)
    found = _made(block) if borrows else _kept(block)
    noted.add(found.downloads)
    return found


def _made(block: _Block) -> Layer:
    with complaints() as said, recorded(locking=block.locking) as downloads:
        objects = with_sources(
            block.use, block.image, block.recipe, lambda use: made(use, block.image)
        )
        text = _SEPARATOR.join(map(str, objects))
        left = _SEPARATOR.join(filter(None, (_left(one, block.stage) for one in objects)))
    if block.use.name not in PRIMITIVES:  # what a recipe itself says is done as it says
        text = repeatable(text)
    if said.messages:
        raise refused(block.image, "; ".join(said.messages))
    return Layer(text=text, left=left, stage=block.stage, downloads=downloads)


_kept = functools.lru_cache(maxsize=20_000)(_made)
forget = _kept.cache_clear  # for measurements


def _left(one: object, stage: str) -> str:
    """What an object leaves for run time; hpccm's blocks return None where that is nothing."""
    runtime = getattr(one, "runtime", None)
    found = runtime(_from=stage) if stage and callable(runtime) else None
    return str(found) if found else ""
