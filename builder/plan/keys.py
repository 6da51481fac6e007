"""The stages of an image's Dockerfile with their content keys: equal keys are built once.

A key is a SHA-256 over named parts, so that a message can say which part differs: the stage
before, the base, the recipe's blocks, the checks compiled in the stage, the sources it copies, the
cell, the spec compiler, the engine, the native tools used in it. What only the run-time stage
contains (environment, labels, descriptions) is not part of the other stages' keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from builder import __version__
from builder.model import DEVELOPMENT, NONE, RUNTIME, KeyedStage, PlannedImage
from builder.model.digests import sha256_of_json

FORMAT = "1"  # increased when the same parts give a different stage
# Why a stage is built again, by the part that differs; only the first is reported.
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
    """The stages of an image as declared in the project's files, independent of this machine.

    `base` is the base's name in specs; `made_here` is true if the base comes from this machine's
    store and has a digest there. `native` names the native tools for emulated steps, a release and
    an architecture; empty if there are none. `stages` are the names in the Dockerfile and across
    images, and the parts of the key.
    """

    image: str
    base: str
    made_here: bool
    native: str
    common: Mapping[str, str]
    stages: Sequence[tuple[str, str, Mapping[str, str]]]

    def keyed(self, *, base: str, engine: str, native: str = "") -> tuple[KeyedStage, ...]:
        """Return the stages with their keys; `base` is the digest of the base.

        `engine` is the name, version and relevant options of the engine; `native` is the digest of
        the native tools that steps use, empty for none.
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
    """Return a stage for each recipe of the chain, and the final stage, the image."""
    cell, base, cuda = image.cell, image.base, image.cuda
    about: list[object] = [cell.arch, cell.cpu]
    about += [base.hpccm_distro, base.distribution, base.version]
    about += [cell.cuda != NONE, cuda.route if cuda else "", image.prepare]
    about += [cuda.packages.environment] if cuda and cuda.sdk else []  # blocks use its folder
    return DeclaredStages(
        image=image.identifier,
        base=image.base_reference,
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
    """Return in a few words why a stage's key changed."""
    return next((text for part, text in _WHY.items() if before.get(part) != now.get(part)), "")
