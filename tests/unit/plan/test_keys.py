"""A stage's content key: what is part of it, and what is not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from samples import EVERYTHING, block, check, project, recipe, shipped_images

from builder.model import KeyedStage, Lock, LockedSource, PlannedImage
from builder.plan import make_plan
from builder.plan.keys import declared_stages, why_changed

CORE = recipe("core", development=(block(ospackages=["a"]),), checks=("hello",))
LEAF = recipe("leaf", parent="core", development=(block(ospackages=["b"]),))


def images(root: Path, **changes: Any) -> dict[str, PlannedImage]:
    given = {"recipes": [CORE, LEAF], "checks": [check()], **changes}
    plan = make_plan(project(root, **given), EVERYTHING, compiler="hpccm 1")
    return {one.cell.recipe: one for one in plan.images}


def keyed(
    image: PlannedImage,
    *,
    base: str = "sha256:1",
    engine: str = "e 1",
    compiler: str = "hpccm 1",
    native: str = "",
) -> tuple[KeyedStage, ...]:
    return declared_stages(image, compiler).keyed(base=base, engine=engine, native=native)


def keys(root: Path, **changes: Any) -> list[str]:
    return [one.key for one in keyed(images(root, **changes)["leaf"])]


def test_images_of_a_chain_have_its_stages_in_common(tmp_path: Path) -> None:
    found = images(tmp_path)
    core, leaf = keyed(found["core"]), keyed(found["leaf"])
    assert [one.target for one in leaf] == ["core-development", "leaf-development", "runtime"]
    assert core[0] == leaf[0]
    assert len({one.key for one in (*core, *leaf)}) == 4
    assert leaf[0].name == "core-development-debian13-x86_64"
    assert leaf[-1].name == "leaf-1.0-debian13-x86_64"
    assert leaf[0].tag == f"localhost/build-images/stage:{leaf[0].key[:32]}"


def test_flavours_have_stages_in_common() -> None:
    from builder.model import DEVELOPMENT  # noqa: PLC0415

    image = shipped_images()[0]
    other = dataclasses.replace(image, cell=dataclasses.replace(image.cell, flavour=DEVELOPMENT))
    assert [a == b for a, b in zip(keyed(image), keyed(other), strict=True)] == [True, False]


SOURCE = LockedSource(url="https://e.org/x", file="x", sha256="0" * 64, size=1, recipes=("core",))


@pytest.mark.parametrize(
    ("changes", "stages", "why"),
    [
        ({"recipes": [dataclasses.replace(CORE, about="other")]}, [2], "its recipe changed"),
        (
            {"recipes": [dataclasses.replace(CORE, environment={"A": "b"})]},
            [2],
            "its recipe changed",
        ),
        (
            {"recipes": [dataclasses.replace(CORE, development=(block(ospackages=["c"]),))]},
            [0, 1, 2],
            "its recipe changed",
        ),
        ({"checks": [check(build=("cc other.c",))]}, [0, 1, 2], "its checks changed"),
        ({"checks": [check(run="hello again")]}, [2], "its recipe changed"),
        ({"lock": Lock(sources={SOURCE.url: SOURCE})}, [0, 1, 2], "its sources changed"),
    ],
)
def test_what_changes_which_key(
    changes: dict[str, Any], stages: list[int], why: str, tmp_path: Path
) -> None:
    if "recipes" in changes:
        changes = {"recipes": [*changes["recipes"], LEAF]}
    before = keyed(images(tmp_path)["leaf"])
    after = keyed(images(tmp_path, **changes)["leaf"])
    different = [n for n, (a, b) in enumerate(zip(before, after, strict=True)) if a.key != b.key]
    assert different == stages
    assert why_changed(before[stages[0]].parts, after[stages[0]].parts) == why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"base": "sha256:2"}, "its base changed"),
        ({"engine": "e 2"}, "the engine changed"),
        ({"compiler": "hpccm 2"}, "build-images or hpccm changed"),
        ({"native": "sha256:3"}, "its native tools changed"),
    ],
)
def test_what_is_not_declared_is_part_of_every_key(
    changes: dict[str, str], why: str, tmp_path: Path
) -> None:
    image = images(tmp_path)["leaf"]
    before, after = keyed(image), keyed(image, **changes)
    assert not {one.key for one in before} & {one.key for one in after}
    assert why_changed(before[0].parts, after[0].parts) == why
    assert why_changed(before[1].parts, after[1].parts) == "the stage before it changed"


def test_a_base_from_a_registry_is_its_reference() -> None:
    images = [one for one in shipped_images() if not one.is_bootstrapped]
    assert keyed(images[0], base="x")[0].parts["base"] == images[0].base_reference
    mirrored = dataclasses.replace(images[0], base_image="mirror.example/a")
    assert declared_stages(mirrored, "hpccm 1") == declared_stages(images[0], "hpccm 1")


def test_all_shipped_stages_that_share_a_key_share_their_text() -> None:
    """What is one key for two images must be one text; comments do not count."""
    from builder.build.stages import stage_alone  # noqa: PLC0415
    from builder.compile.spec import compile_spec  # noqa: PLC0415

    texts: dict[str, str] = {}
    for image in shipped_images()[::4]:
        spec = compile_spec(image, run_checks="")
        for stage in keyed(image, base=image.base_image)[:-1]:
            text = stage_alone(spec.dockerfile, stage.target, {})
            body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            assert texts.setdefault(stage.key, body) == body
