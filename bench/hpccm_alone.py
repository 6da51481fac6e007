"""The texts of specs made by hpccm alone: what the driver asked of hpccm, asked again.

While a spec is compiled, every object that the driver adds to a stage is noted with its
arguments. Played back, the notes are a recipe in hpccm's own language, without the reading of a
file: the least time in which hpccm makes the same text.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import hpccm
import hpccm.config

from builder.compile.spec.downloads import with_sources
from builder.compile.spec.driver import SINGULARITY_VERSION, StageText, dockerfile, singularity
from builder.compile.spec.hpccm_blocks import block_classes, block_object
from builder.model import BlockUse, PlannedImage, StageRecipe, Where

FORMATS: dict[str, Callable[[PlannedImage], str]] = {
    "docker": dockerfile,
    "singularity": singularity,
}
PRIMITIVES = (hpccm.primitives.baseimage, hpccm.primitives.copy)  # beside those that recipes name
_SEPARATOR = "\n\n\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """An object of hpccm's, or the run-time part of an earlier stage, added to a stage."""

    stage: int
    make: type | None
    arguments: dict[str, Any]
    words: tuple[Any, ...] = ()
    source: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What makes one text."""

    container_format: str
    stages: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)

    def play(self) -> str:
        """The text, made by hpccm alone."""
        hpccm.config.set_container_format(self.container_format)
        hpccm.config.set_singularity_version(SINGULARITY_VERSION)
        hpccm.config.set_working_directory("/var/tmp")
        stages = [hpccm.Stage(name=name) for name in self.stages]
        for call in self.calls:
            if call.make is not None:
                stages[call.stage] += call.make(*call.words, **call.arguments)
            else:
                stages[call.stage] += stages[call.source].runtime(**call.arguments)
        return _SEPARATOR.join(map(str, stages))


def scripts(image: PlannedImage) -> Iterator[tuple[Script, str]]:
    """For each format what makes an image's text, and that text, without its header."""
    for name, compile_ in FORMATS.items():
        script = Script(container_format=name)
        with _noted(script):
            text = compile_(image)
        yield script, text.partition("\n\n")[2].removesuffix("\n")


@contextlib.contextmanager
def _noted(script: Script) -> Iterator[None]:
    stages: list[Any] = []

    class Stage(StageText):
        def __init__(self, *, name: str) -> None:
            super().__init__(name=name)
            script.stages.append(name)
            stages.append(self)

        def add(self, layer: Any, where: Where) -> None:
            for one in layer if isinstance(layer, list) else [layer]:
                script.calls.append(_call(_index(stages, self), one))
                super().add(one, where)

        def remainders(self) -> Iterator[tuple[str, Where]]:
            texts = list(super().remainders())
            if text := "\n\n".join(text for text, _ in texts):
                given = {"_from": self.name}
                yield _Text(text, _index(stages, self), given), texts[0][1]

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("builder.compile.spec.driver.StageText", Stage))
        stack.enter_context(mock.patch("builder.compile.spec.driver.layer", _objects))
        for cls in {*block_classes().values(), *PRIMITIVES}:
            stack.enter_context(mock.patch.object(cls, "__init__", _noting(cls.__init__)))
        yield


def _index(stages: Sequence[object], stage: object) -> int:
    return next(number for number, one in enumerate(stages) if one is stage)


def _objects(use: BlockUse, image: PlannedImage, recipe: StageRecipe, _: str = "") -> list[Any]:
    """A block as hpccm's objects, where the driver takes its text."""
    return with_sources(use, image, recipe, lambda use: block_object(use, image))


class _Text(str):
    """The run-time part of a stage, which knows of which."""

    __slots__ = ("given", "source")

    def __new__(cls, text: str, source: int, given: dict[str, Any]) -> _Text:
        self = super().__new__(cls, text)
        self.source, self.given = source, given
        return self

    source: int
    given: dict[str, Any]


def _noting(init: Callable[..., None]) -> Callable[..., None]:
    def noted(self: Any, *words: Any, **given: Any) -> None:
        if not hasattr(self, "noted"):  # else a subclass was here first
            self.noted = copy.deepcopy((words, given))
        init(self, *words, **given)

    return noted


def _call(stage: int, layer: Any) -> _Call:
    if isinstance(layer, _Text):
        return _Call(stage=stage, make=None, arguments=layer.given, source=layer.source)
    words, given = layer.noted
    return _Call(stage=stage, make=type(layer), words=words, arguments=given)


def play_all(some: Sequence[Script]) -> list[str]:
    """The text of each script."""
    return [script.play() for script in some]
