"""The stages of an image's Dockerfile with their content keys: equal keys are built once.

A key is a SHA-256 over parts that have names, so that two keys can be told apart in words: the
stage before, the base, the recipe's blocks, the checks made in the stage, the sources it copies
in, the cell, the compiler of specs, the engine, the native tools lent to it. What only the
run-time stage says (environment, labels, descriptions) is no part of the other stages' keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from builder import __version__
from builder.model import DEVELOPMENT, NONE, RUNTIME, KeyedStage, PlannedImage
from builder.model.digests import sha256_of_json

FORMAT = "1"  # raised when the same parts would make another stage
# Why a stage is built anew, by the part that differs; the first of them is what is told.
_WHY = {
    "before": "the stage before it changed",
    "base": "its base changed",
    "recipe": "its recipe changed",
    "checks": "its checks changed",
    "sources": "its sources changed",
    "cell": "its cell changed",
    "compiler": "build-images or hpccm changed",
    "engine": "the engine changed",
    "native": "its native tools changed",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredStages:
    """The stages of an image as its project's files declare them, without this machine's part.

    `base` is how specs name the base; `made_here` whether it comes from this machine's store, and
    has a digest there. `native` names the native tools that steps are lent where they are emulated:
    a release and an architecture; empty if there are none. `stages` are the names in the
    Dockerfile and across images, and the parts of the key.
    """

    image: str
    base: str
    made_here: bool
    native: str
    common: Mapping[str, str]
    stages: Sequence[tuple[str, str, Mapping[str, str]]]

    def keyed(self, *, base: str, engine: str, native: str = "") -> tuple[KeyedStage, ...]:
        """The stages with their keys: `base` is the digest of the base.

        `engine` says which engine builds, its version and the options that matter; `native` is the
        digest of the native tools that steps are lent, empty for none.
        """
        keyed: list[KeyedStage] = []
        here = {"base": base if self.made_here else self.base, "engine": engine}
        here["native"] = native
        for target, name, own in self.stages:
            parts = {"before": keyed[-1].key if keyed else "", **here, **self.common, **own}
            key = sha256_of_json(parts)
            keyed.append(KeyedStage(target=target, name=name, parts=parts, key=key))
        return tuple(keyed)


def declared_stages(image: PlannedImage, compiler: str) -> DeclaredStages:
    """Return a stage for each recipe of the chain, then the one that becomes the image."""
    cell, base, cuda = image.cell, image.base, image.cuda
    about: list[object] = [cell.arch, cell.cpu]
    about += [base.hpccm_distro, base.distribution, base.version]
    about += [cell.cuda != NONE, cuda.route if cuda else "", image.prepare]
    about += [cuda.packages.environment] if cuda and cuda.sdk else []  # blocks name its folder
    return DeclaredStages(
        image=image.identifier,
        base=image.base_image if image.is_bootstrapped else image.base_reference,
        made_here=image.is_bootstrapped,
        native=f"{base.bootstrap.suite}-{cell.arch}" if base.bootstrap else "",
        common={
            "cell": sha256_of_json(about),
            "compiler": f"{compiler}, build-images {__version__}, {FORMAT}",
        },
        stages=tuple(_stages(image)),
    )


def _stages(image: PlannedImage) -> Iterator[tuple[str, str, dict[str, str]]]:
    for stage in image.stages:
        cell = dataclasses.replace(
            image.cell, recipe=stage.name, recipe_version=DEVELOPMENT, flavour=RUNTIME
        )
        blocks: list[object] = [stage.name, dict(stage.sources)]
        blocks += [
            sha256_of_json([use.name, use.arguments, dict(use.files)]) for use in stage.development
        ]
        checks = [
            sha256_of_json([check.name, dict(check.sources), check.build])
            for check in image.checks
            if check.name in stage.checks
        ]
        locks = [source for source in image.sources if stage.name in source.recipes]
        sources = [[source.url, source.sha256] for source in locks]
        parts = {"recipe": blocks, "checks": checks, "sources": sources}
        digests = {name: sha256_of_json(value) for name, value in parts.items()}
        yield f"{stage.name}-{DEVELOPMENT}", cell.identifier, digests
    yield image.cell.flavour, image.identifier, {"recipe": image.content_key}


def why_changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """In a few words, what made a stage's key another one."""
    return next((text for part, text in _WHY.items() if before.get(part) != now.get(part)), "")
