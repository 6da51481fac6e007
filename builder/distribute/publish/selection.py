"""Releases of a selection: their images for every architecture, their floating tags."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts.manifests import read_manifest
from builder.build.planning import plan_of
from builder.distribute.publish.releases import NotReady, Ready, Release, ready
from builder.model import (
    AXES,
    GENERIC,
    RUNTIME,
    Cell,
    FloatingTag,
    PlannedImage,
    Project,
    Selection,
)
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import BadInput, Fault, Refused, counted
from builder.verify.targets import harness_digests, harness_of, within

BUILD_HINT = "build-images, with the same selectors, builds and verifies what is missing"
NARROW_HINT = "publish those architectures with it, or remove the tag from the registry"


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """A release as the project declares it: `images` are those of all its architectures."""

    recipe: str
    tag: str
    floating: tuple[str, ...]
    images: tuple[PlannedImage, ...]
    relatives: tuple[tuple[str, str], ...]

    @property
    def architectures(self) -> tuple[str, ...]:
        """Spelt as OCI does."""
        return tuple(ARCHITECTURES[image.cell.arch].oci for image in self.images)

    def __str__(self) -> str:
        return f"{self.recipe}:{self.tag}"


def declared_releases(project: Project, selection: Selection) -> list[Declared]:
    """The releases that have a selected cell.

    A release is of every architecture that the matrix has for it, also when globs select only one
    of them; but for those that `--arch`, or the matrix's default selection, leaves out. Raises
    `BadInput` for floating tags that mean no cell.
    """
    chosen = {_without_arch(image.cell) for image in plan_of(project, selection).images}
    patterns = {
        axis: tuple(sorted({cell.axis(axis) for cell in chosen})) for axis in ("recipe", *AXES)
    }
    wide = Selection(
        patterns={**patterns, "arch": _architectures(project, selection)},
        flavours=selection.flavours,
        cpu_targets=selection.cpu_targets,
    )
    groups: dict[Cell, list[PlannedImage]] = {}
    for image in plan_of(project, wide).images:
        if (key := _without_arch(image.cell)) in chosen:
            groups.setdefault(key, []).append(image)
    _check_floating(project, {cell.recipe for cell in chosen})
    return [
        Declared(
            recipe=cell.recipe,
            tag=cell.tag,
            floating=tuple(tag.tag for tag in project.matrix.tags if _means(tag, cell)),
            images=tuple(sorted(images, key=lambda image: image.cell.arch)),
            relatives=_relatives(project, cell),
        )
        for cell, images in groups.items()
    ]


def ready_releases(
    releases: Sequence[Declared], out: Path, project: Path
) -> tuple[list[Release], list[str]]:
    """The releases from the output folder, and why some may not be published, a line a reason."""
    complete: list[Release] = []
    reasons: list[str] = []
    for release in releases:
        images: list[Ready] = []
        for image in release.images:
            folder = out / image.identifier
            try:
                harness = within(harness_of(harness_digests(image, project)))
                images.append(ready(image, folder, read_manifest(folder), harness))
            except NotReady as error:
                where = f"{release}: {image.cell.arch}"
                reasons += [f"{where}: {reason}" for reason in error.reasons]
        complete.append(
            Release(
                recipe=release.recipe,
                tag=release.tag,
                floating=release.floating,
                images=tuple(images),
                relatives=release.relatives,
            )
        )
    return complete, reasons


def _relatives(project: Project, cell: Cell) -> tuple[tuple[str, str], ...]:
    """The recipe's ancestors, the nearest first, each with the tag of the same cell."""
    return tuple(
        (recipe.name, dataclasses.replace(cell, recipe_version=recipe.version).tag)
        for recipe in reversed(project.chain(cell.recipe)[:-1])
    )


def _architectures(project: Project, selection: Selection) -> tuple[str, ...]:
    """The patterns of architectures that releases are to have; empty for all."""
    default = not (selection.everything or selection.patterns or selection.images)
    return (project.matrix.default if default else selection.patterns).get("arch", ())


def _without_arch(cell: Cell) -> Cell:
    return dataclasses.replace(cell, arch="")


def _means(tag: FloatingTag, cell: Cell) -> bool:
    if (cell.flavour, cell.cpu) != (RUNTIME, GENERIC):
        return False
    named = (tag.recipe, tag.base, tag.cuda, tag.mpi)
    return named == (cell.recipe, cell.base, cell.cuda, cell.mpi)


def _check_floating(project: Project, recipes: set[str]) -> None:
    """Note every floating tag of some recipes that means no cell, with what stands against it."""
    faults = [
        Fault(
            file=tag.where.file,
            line=tag.where.line,
            key=tag.where.key,
            problem="this tag means a cell that is left out",
            valid="; ".join(reasons),
        )
        for tag in project.matrix.tags
        if tag.recipe in recipes and (reasons := _why_none(project, tag))
    ]
    if faults:
        raise BadInput.of(faults, "nothing was published")


def _why_none(project: Project, tag: FloatingTag) -> list[str]:
    patterns = {"recipe": tag.recipe, "base": tag.base, "cuda": tag.cuda, "mpi": tag.mpi}
    selection = Selection(patterns={axis: (value,) for axis, value in patterns.items()})
    plan = plan_of(project, selection, may_be_empty=True)
    if any(_means(tag, image.cell) for image in plan.images):
        return []
    texts = [str(reason) for excluded in plan.left_out for reason in excluded.reasons]
    return list(dict.fromkeys(texts)) or ["the matrix has no such cell"]


def refusal(
    reasons: Sequence[str],
    declared: Sequence[Declared],
    *,
    notes: Sequence[str] = (),
    hint: str = BUILD_HINT,
    done: str = "published",
) -> Refused:
    """The error that lists why nothing was done, and what the registry was told instead."""
    count = counted(len(declared), "release")
    outcome = "no image was published, and no tag was set" if notes else f"nothing was {done}"
    return Refused("\n".join([f"{count} asked for; {outcome}:", *reasons, *notes]), hint=hint)
