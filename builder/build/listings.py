"""Plans and explanations as text and JSON, and plans as a graph."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from builder.artifacts.manifests import ImageState
from builder.build.records import StageState
from builder.model import BaseImage, Cell, LeftOut, Plan, PlannedImage
from builder.model.errors import counted
from builder.model.exact_json import JsonObject
from builder.model.planned import by_reason, on_a_screen
from builder.model.records import schema_of_record

Decided = Callable[[PlannedImage], list[str]]  # returns a line for each decision on an image
Seen = Callable[[PlannedImage], str]  # describes how far an image was tested here
_CELL = [field.name for field in fields(Cell)]
_MANY_IMAGES = 4  # with decisions, a screenful or two
_MANY_CELLS = 8  # with reasons, the same
_MANY_GROUPED = 50
_SCHEMA = Path(__file__).with_name("plan.schema.json")
_SAME = "with the same selectors"
_NO_HANDLER = (
    "native tools: none, set-up did not install the kernel's handler; run 'build-images setup'"
)


def plan_text(
    plan: Plan, states: Sequence[ImageState], stages: Sequence[Sequence[StageState]] = ()
) -> str:
    """Return the images in build order, with their states and the states of stages to build."""
    width = max(len(image.identifier) for image in plan.images)
    target = max((len(row.stage.target) for rows in stages for row in rows), default=0)
    lines: list[str] = []
    for number, (image, state) in enumerate(zip(plan.images, states, strict=True), start=1):
        key = image.content_key[:12]
        lines.append(f"{number:3}. {image.identifier:{width}}  {key}  {state.text}")
        if stages and state.work == "build":
            lines += [f"       {row.stage.target:{target}}  {row}" for row in stages[number - 1]]
    count = counted(len(plan.images), "image")
    left_out = len(plan.left_out)
    more = f"; {left_out} left out ('build-images explain' {_SAME} says why)" if left_out else ""
    return "\n".join([*lines, count + more])


def plan_json(
    plan: Plan, states: Sequence[ImageState], stages: Sequence[Sequence[StageState]]
) -> JsonObject:
    """Return the plan as JSON values, to be streamed."""
    images = zip(plan.images, states, stages, strict=True)
    return {
        "schema": "build-images/plan/v1",
        "images": (_image_json(image, state, its_stages) for image, state, its_stages in images),
        "left_out": map(_left_out_json, plan.left_out),
    }


def _image_json(
    image: PlannedImage, state: ImageState, stages: Sequence[StageState]
) -> dict[str, object]:
    return {
        "image": image.identifier,
        "cell": _cell_json(image.cell),
        "content_key": image.content_key,
        "base_image": image.base_image,
        "stages": [f"{stage.name}-{stage.version}" for stage in image.stages],
        "stage_states": [
            {
                "stage": stage_state.stage.target,
                "key": stage_state.stage.key,
                "state": stage_state.state,
                "shared_with": stage_state.shared_with,
                "why": stage_state.why,
            }
            for stage_state in stages
        ],
        "checks": [check.name for check in image.checks],
        "state": state.text,
    }


def _left_out_json(left_out: LeftOut) -> dict[str, object]:
    return {
        "image": left_out.cell.identifier,
        "cell": _cell_json(left_out.cell),
        "reasons": [{"layer": reason.layer, "text": reason.text} for reason in left_out.reasons],
    }


def _cell_json(cell: Cell) -> dict[str, str]:
    return {name: getattr(cell, name) for name in _CELL}


def plan_schema() -> dict[str, object]:
    """Return the JSON Schema of `plan_json`."""
    schema: dict[str, object] = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    return {**schema, "definitions": {"cell": schema_of_record(Cell)}}


def plan_graph(plan: Plan) -> str:
    """Return the plan in Graphviz's language: bases, the stages of each recipe, images."""
    edges: dict[str, None] = {}
    for image in plan.images:
        cell = image.cell
        source = f"{cell.base} {cell.arch}"
        for stage in image.stages:
            target = f"{stage.name} {cell.base} {cell.cuda} {cell.mpi} {cell.arch}"
            edges[f'  "{source}" -> "{target}";'] = None
            source = target
        edges[f'  "{source}" -> "{image.identifier}";'] = None
        edges[f'  "{image.identifier}" [shape=box];'] = None
    return "\n".join(["digraph plan {", "  rankdir=LR;", *edges, "}"])


def explanation(
    plan: Plan, decided: Decided, seen: Seen = lambda _: "", *, complete: bool = False
) -> str:
    """Return why each selected cell is included or excluded, and the decisions for each image.

    Of many images and cells only as much as fits on a screen, unless all of it is wanted.
    """
    lines = list(_included(plan.images, decided, seen, complete=complete))
    if not complete and len(plan.left_out) > _MANY_CELLS:
        lines.append(f"{len(plan.left_out)} cells are left out; --verbose names them. By reason:")
        lines += on_a_screen(plan.left_out)
    elif len(plan.left_out) > _MANY_GROUPED:
        lines += [f"{len(plan.left_out)} cells are left out:"]
        for text, cells in by_reason((each.cell, each.reasons) for each in plan.left_out):
            lines += [f"- {text}", *(f"    {line}" for line in cells)]
    else:
        for entry in plan.left_out:
            lines += [f"- {entry.cell.identifier}", *(f"    {reason}" for reason in entry.reasons)]
    return "\n".join(lines)


def _included(
    images: Sequence[PlannedImage], decided: Decided, seen: Seen, *, complete: bool
) -> Iterator[str]:
    if not complete and len(images) > _MANY_IMAGES:
        yield f"{len(images)} images are included; --verbose says what decided each:"
        yield from (f"+ {image.identifier}" for image in images[:_MANY_IMAGES])
        yield f"  and {len(images) - _MANY_IMAGES} more: 'build-images plan' {_SAME} lists them"
        return
    for image in images:
        yield f"+ {image.identifier}"
        yield from (f"    {line}" for line in decided(image))
        yield from (f"    seen: {text}" for text in [seen(image)] if text)


def explanation_json(plan: Plan, decided: Decided, seen: Seen) -> JsonObject:
    """Return the explanation as JSON values, to be streamed."""
    return {
        "schema": "build-images/explanation/v1",
        "in": (
            {
                "image": image.identifier,
                "decided": decided(image),
                "seen": seen(image),
                "layers": image.layers,
            }
            for image in plan.images
        ),
        "out": map(_left_out_json, plan.left_out),
    }


def decisions(
    image: PlannedImage,
    host: str = platform.machine(),
    opened: Callable[[str], bool] = lambda _arch: True,
    archives: Callable[[BaseImage], Iterable[str]] = lambda _base: (),
) -> list[str]:
    """Return the decisions for an image; `opened` says if native tools work for an architecture.

    `archives` says which of this machine's archives serve a base that is made here.
    """
    from builder.build.native import tools  # noqa: PLC0415 - `plan` starts without what builds

    lines = list(image.decided)
    if image.is_bootstrapped:
        place = 2 if image.base.mirrors else 1  # below those that the site names
        lines[place:place] = (f"base: {archive}" for archive in archives(image.base))
    chain = " <- ".join(f"{stage.name} {stage.version}" for stage in reversed(image.stages))
    lines.append(f"recipes: {chain}")
    if description := tools.described(image.base, image.cell.arch, host):
        lacking = tools.lacking(image.base, image.cell.arch, host)
        is_used = not lacking and opened(image.cell.arch)
        lines.append(description if lacking or is_used else _NO_HANDLER)
        if is_used and (others := tools.emulated_compilers(image)):
            lines.append(f"emulated compilers that its recipes install: {others}")
    lines.append(f"checks: {', '.join(check.name for check in image.checks) or 'none'}")
    return lines
