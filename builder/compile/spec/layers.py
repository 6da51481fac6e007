"""Blocks as text, and what they leave for the run-time stage."""

from __future__ import annotations

from dataclasses import dataclass

from builder.compile.spec.complaints import complaints
from builder.compile.spec.downloads import Downloads, record, recorded, with_sources
from builder.compile.spec.making import made, refused
from builder.compile.spec.quirks import repeatable
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


def layer(use: BlockUse, image: PlannedImage, recipe: StageRecipe, stage: str = "") -> Layer:
    """A block of a recipe as text, in the stage of that name; hpccm's state is the image's.

    Raises `BadInput` for what hpccm refuses, or warns of.
    """
    noted = record()
    with complaints() as warnings, recorded(locking=noted.locking) as downloads:
        objects = with_sources(use, image, recipe, lambda use: made(use, image))
        text = _SEPARATOR.join(map(str, objects))
        left = _SEPARATOR.join(filter(None, (_left(one, stage) for one in objects)))
    if use.name not in PRIMITIVES:  # what a recipe itself says is done as it says
        text = repeatable(text)
    if warnings.messages:
        raise refused(image, "; ".join(warnings.messages))
    noted.add(downloads)
    return Layer(text=text, left=left, stage=stage, downloads=downloads)


def _left(one: object, stage: str) -> str:
    """What an object leaves for run time; hpccm's blocks return None where that is nothing."""
    runtime = getattr(one, "runtime", None)
    found = runtime(_from=stage) if stage and callable(runtime) else None
    return str(found) if found else ""
