"""The plan of a selection; cells that hpccm cannot build are left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from builder.artifacts.manifests import BUILD_AGAIN, ImageGoal, ImageState, state_of
from builder.build.records import StageState, stage_states
from builder.compile.spec import COMPILER, block_faults, compile_spec, limit_reason
from builder.load.project import load_project
from builder.load.site import layers_of
from builder.model import AXES, Plan, PlannedImage, Project, Selection, Spec
from builder.model.errors import BadInput, EmptySelection
from builder.model.manifest import Manifest
from builder.plan import make_plan
from builder.plan.keys import DeclaredStages, declared_stages
from builder.system.home import Home


def plan_of(project: Project, selection: Selection, **options: bool) -> Plan:
    """Return the plan of a selection; options and errors are those of `make_plan`."""
    return make_plan(project, selection, compiler=COMPILER, limit_reason=limit_reason, **options)


def images_of(project: Project, selection: Selection) -> tuple[PlannedImage, ...]:
    """Return the images of a plan, sooner than the plan; raises as `plan_of` does."""
    return plan_of(project, selection, images_only=True).images


def own_images(
    project: Project, selection: Selection
) -> tuple[Sequence[PlannedImage], Sequence[PlannedImage] | None]:
    """Return the images of a selection, and None; without a selector, a project's own images.

    Then the second value are the project's other images: those that it inherits unchanged.
    """
    if selection.patterns or selection.images:
        return images_of(project, selection), None
    images = images_of(project, dataclasses.replace(selection, everything=True))
    has_facts = any((project.layers.own.folder / "facts").glob("*.yaml"))  # each image may use them
    if selection.everything or has_facts:
        return images, ()
    own, inherited = list[PlannedImage](), list[PlannedImage]()
    for image in images:
        (own if _is_own(image, project) else inherited).append(image)
    return own, inherited


def _is_own(image: PlannedImage, project: Project) -> bool:
    """Return whether a recipe, the base or a value of an image is not from a lower layer."""
    files = {**image.layers.get("recipe", {}), **image.layers.get("base", {})}
    inherited = project.matrix.inherited
    return (
        not image.layers
        or project.layers.own.name in files.values()
        or any(image.cell.axis(axis) not in values for axis, values in inherited.items())
    )


def load_plan(project: Path, selection: Selection, *, may_be_empty: bool = False) -> Plan:
    """Return the plan of a project's selection; raises all faults of all files at once."""
    loaded = load_project(project, block_faults=block_faults)
    return plan_of(loaded, selection, may_be_empty=may_be_empty)


def load_images(project: Path, selection: Selection) -> tuple[PlannedImage, ...]:
    """Return the images of a project's selection; raises all faults of all files at once."""
    return images_of(load_project(project, block_faults=block_faults), selection)


def image_of(project: Path, manifest: Manifest) -> PlannedImage | None:
    """Return a manifest's image as its project plans it, found by its cell; None if it does not."""
    cell = manifest.cell
    selection = Selection(
        patterns={axis: (cell.axis(axis),) for axis in ("recipe", *AXES)},
        flavours=(cell.flavour,),
        cpu_targets=(cell.cpu,),
    )
    try:
        images = load_images(project, selection)
    except EmptySelection:
        return None
    return next((image for image in images if image.identifier == manifest.image), None)


def compile_images(project: Path, images: Iterable[PlannedImage]) -> list[Spec]:
    """Return the specs of images, or raise every fault that compiling them finds."""
    run_checks = layers_of(project).run_checks.read_text()
    specs: list[Spec] = []
    errors: list[BadInput] = []
    for image in images:
        try:
            specs.append(compile_spec(image, run_checks=run_checks))
        except BadInput as error:
            errors.append(error)
    if errors:
        faults = [fault for error in errors for fault in error.faults]
        raise BadInput.of(faults) if faults else errors[0]
    return specs


def image_states(
    out: Path, images: Sequence[PlannedImage], expected: ImageGoal | None
) -> list[ImageState]:
    """Return what the main job would do with each image; without `expected`, build it all again."""
    if expected is None:
        return [BUILD_AGAIN] * len(images)
    return [state_of(out, image, expected) for image in images]


def states_of_stages(
    images: Sequence[PlannedImage], goal: ImageGoal
) -> list[tuple[StageState, ...]]:
    """Return for each image what the main job would do with each of its stages."""
    home, declared = Home.of_environment(), declared_of(images)
    return stage_states(home, goal.engine, declared, native=goal.native_tools)


def declared_of(images: Sequence[PlannedImage]) -> list[DeclaredStages]:
    """Return the stages of images, as their project declares them."""
    return [declared_stages(image, COMPILER) for image in images]


def unchanged_spec(project: Path, manifest: Manifest) -> Spec:
    """Return the spec of an image; raise `BadInput` if the project now gives a different one."""
    name = manifest.image
    hint = f"use the project as it was then, or build the image again: build-images --image {name}"
    image = image_of(project, manifest)
    if image is None:
        raise BadInput(f"{name}: the project has no such image any more", hint=hint)
    if image.content_key != manifest.content_key:
        raise BadInput(f"{name}: its recipes, base or checks changed since it was built", hint=hint)
    [spec] = compile_images(project, [image])
    return spec
