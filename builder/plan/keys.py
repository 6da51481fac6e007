"""The stages of an image's Dockerfile with their content keys: equal keys are built once.

A key is a SHA-256 over parts that have names, so that two keys can be told apart in words: the
stage before, the base, the recipe's blocks, the checks made in the stage, the sources it copies
in, the cell, the compiler of specs, the engine. What only the run-time stage says (environment,
labels, descriptions) is no part of the other stages' keys.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from builder import __version__
from builder.model import DEVELOPMENT, NONE, RUNTIME, BlockUse, KeyedStage, PlannedImage, StageCheck
from builder.plan.rendering import Memo

FORMAT = "1"  # raised when the same parts would make another stage
# Why a stage is built anew, by the part that differs; the first of them is what is told.
WHY = {
    "before": "the stage before it changed",
    "base": "its base changed",
    "recipe": "its recipe changed",
    "checks": "its checks changed",
    "sources": "its sources changed",
    "cell": "its cell changed",
    "compiler": "build-images or hpccm changed",
    "engine": "the engine changed",
}


class StageKeys:
    """Makes the keys of many images; what they have in common is digested once.

    `base_digest` gives the digest of the base that an image starts from, empty if it is not known
    yet. `engine` says which engine builds, its version and the options that matter.
    """

    def __init__(
        self, *, compiler: str, engine: str, base_digest: Callable[[PlannedImage], str]
    ) -> None:
        self._compiler = f"{compiler}, build-images {__version__}, {FORMAT}"
        self._engine = engine
        self._base_digest = base_digest
        self._memo = Memo()

    def of(self, image: PlannedImage) -> tuple[KeyedStage, ...]:
        """One stage a recipe of the chain, then the one that becomes the image."""
        made: list[KeyedStage] = []
        shared = self._shared(image)
        for target, name, parts in self._stages(image):
            all_parts = {"before": made[-1].key if made else "", **shared, **parts}
            key = _sha256(all_parts)
            made.append(KeyedStage(target=target, name=name, parts=all_parts, key=key))
        return tuple(made)

    def _shared(self, image: PlannedImage) -> dict[str, str]:
        cell, base, cuda = image.cell, image.base, image.cuda
        about: list[Any] = [cell.arch, cell.cpu, base.hpccm_distro, base.distribution, base.version]
        about += [cell.cuda != NONE, cuda.route if cuda else "", image.prepare]
        return {
            "base": self._base_digest(image) if image.is_bootstrapped else image.base_reference,
            "cell": _sha256(about),
            "compiler": self._compiler,
            "engine": self._engine,
        }

    def _stages(self, image: PlannedImage) -> Iterator[tuple[str, str, dict[str, str]]]:
        for stage in image.stages:
            cell = dataclasses.replace(
                image.cell, recipe=stage.name, recipe_version=DEVELOPMENT, flavour=RUNTIME
            )
            blocks: list[Any] = [stage.name, dict(stage.sources)]
            blocks += [self._memo.of(_block, use) for use in stage.development]
            own = [one for one in image.checks if one.name in stage.checks]
            checks = [self._memo.of(_check, one) for one in own]
            sources = [[one.url, one.sha256] for one in image.sources if stage.name in one.recipes]
            parts = {"recipe": blocks, "checks": checks, "sources": sources}
            digests = {name: _sha256(value) for name, value in parts.items()}
            yield f"{stage.name}-{DEVELOPMENT}", cell.identifier, digests
        yield image.cell.flavour, image.identifier, {"recipe": image.content_key}


def why_changed(before: Mapping[str, Any], now: Mapping[str, str]) -> str:
    """In a few words, what made a stage's key another one."""
    return next((text for part, text in WHY.items() if before.get(part) != now.get(part)), "")


def _block(use: BlockUse) -> str:
    return _sha256([use.name, use.arguments, dict(use.files)])


def _check(check: StageCheck) -> str:
    return _sha256([check.name, dict(check.sources), check.build])


def _sha256(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
