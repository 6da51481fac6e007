"""CUDA by NVIDIA's wheels: which cells take them, what a recipe names, and what an image keeps."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from golden_cells import golden_project
from samples import block, recipe
from test_routes import at, compiled, one, planned

from builder.compile.spec import downloads_of
from builder.model import BlockUse, Lock, PlannedImage, Project, Selection, Site
from builder.model.errors import BadInput
from builder.plan import make_plan

DEBIAN13 = "own-1.0-debian13-cuda13.5-x86_64"
_WHEEL = re.compile(r"COPY files/sources/\w+/nvidia_(\w+?)(?:_cu13)?-[\d.]+-py3")


def with_recipe(*development: BlockUse, lock: Lock | None = None) -> Project:
    """The golden project with a recipe `own`, for which nothing is locked."""
    known = golden_project()
    more = {**known.recipes, "own": recipe("own", development=development)}
    return dataclasses.replace(known, recipes=more, lock=known.lock if lock is None else lock)


def own(identifier: str = DEBIAN13, **arguments: Any) -> PlannedImage:
    return one(with_recipe(block("cuda", **arguments)), identifier)


def wheels(image: PlannedImage) -> set[str]:
    return {name.replace("_", "-") for name in _WHEEL.findall(compiled(image).dockerfile)}


COMPILER = {"cuda-nvcc", "cuda-crt", "nvvm", "cuda-cccl", "cuda-profiler-api", "nvml-dev", "nvtx"}


@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [
        ({"libraries": ["cudart"]}, {"cuda-runtime"}),
        ({"libraries": ["curand"], "nccl": True}, {"cuda-runtime", "curand", "nccl"}),
        (
            {"libraries": ["cusolver"]},
            {"cuda-runtime", "cublas", "cusolver", "cusparse", "nvjitlink", "cuda-nvrtc"},
        ),
        (
            {},
            {
                *("cuda-runtime", "cublas", "cufft", "curand", "cusolver", "cusparse"),
                *("nvjitlink", "cuda-nvrtc"),
            },
        ),
    ],
)
def test_a_recipe_gets_the_libraries_that_it_names_and_what_they_load(
    arguments: dict[str, Any], loaded: set[str]
) -> None:
    image = own(**arguments)
    assert wheels(image) == COMPILER | loaded
    text = compiled(image).dockerfile
    kept = {
        name.replace("_", "-")
        for name in re.findall(r"unzip \S+ -o \S+/nvidia_(\w+?)(?:_cu13)?-\S+ -d \S+/redist", text)
    }
    assert kept == loaded
    assert text.count("COPY --from=own-development /usr/local/cuda-13.5/redist ") == 1


def test_cells_that_other_ways_reach_keep_them() -> None:
    for identifier, route in (
        ("own-1.0-debian12-cuda13.0-x86_64", "repository"),
        ("own-1.0-debian12-cuda13.0-aarch64", "wheels"),
        ("own-1.0-debian13-cuda12.4-x86_64", "distribution"),
        ("own-1.0-ubuntu24.04-cuda13.0-x86_64", "image"),
        (DEBIAN13, "wheels"),
    ):
        image = own(identifier)
        assert image.cuda is not None
        assert image.cuda.route == route, identifier


def test_a_site_can_put_wheels_first() -> None:
    project = with_recipe(block("cuda"))
    site = Site(cuda_routes=("wheels", "repository"))
    for cuda, route in (("13.0", "wheels"), ("12.9", "repository")):
        image = one(at(site, project), f"own-1.0-debian12-cuda{cuda}-x86_64")
        assert image.cuda is not None
        assert image.cuda.route == route


def test_there_are_none_for_power() -> None:
    project = with_recipe(block("cuda"))
    [left] = planned(project, "own-1.0-debian13-cuda13.5-ppc64le").left_out
    [text] = [str(reason) for reason in left.reasons if "no route" in str(reason)]
    assert "the Python package index has no nvcc for ppc64le" in text


def test_what_the_route_lacks_leaves_a_cell_out() -> None:
    [left] = planned(with_recipe(block("cuda", cudnn=True)), DEBIAN13).left_out
    assert "by the route wheels on debian13 for x86_64 has no cudnn" in str(left.reasons[0])


def test_wheels_are_those_of_the_lock_whoever_locked_them() -> None:
    image = own(libraries=["cudart"])
    assert {source.recipes for source in image.sources} == {("own",)}
    assert len(image.sources) == len(COMPILER) + 1
    others = one(golden_project(), "cuda-base-1.0-debian13-cuda12.4-openmpi5.0-ppc64le")
    assert others.sources == ()


def test_another_checksum_is_another_image() -> None:
    project = with_recipe(block("cuda"))
    sources = {
        url: dataclasses.replace(source, sha256="0" * 64)
        for url, source in project.lock.sources.items()
    }
    changed = with_recipe(block("cuda"), lock=Lock(sources=sources))
    assert one(project, DEBIAN13).content_key != one(changed, DEBIAN13).content_key


def test_a_wheel_that_is_not_locked_is_a_fault_until_it_is() -> None:
    image = one(with_recipe(block("cuda"), lock=Lock()), DEBIAN13)
    with pytest.raises(BadInput, match=r"nvidia-cuda-nvcc/13\.5\.37/x86_64 is not in lock\.yaml"):
        compiled(image)
    asked = {url for one in downloads_of([image]).asked for url in one.urls}
    assert "wheel:nvidia-cuda-nvcc/13.5.37/x86_64" in asked


def test_a_development_image_keeps_its_toolkit() -> None:
    project = with_recipe(block("cuda", libraries=["cudart"]))
    selection = Selection(
        images=(f"{DEBIAN13[:-7]}-development-x86_64",), flavours=("development",)
    )
    [image] = make_plan(project, selection, compiler="hpccm 1").images
    text = compiled(image).dockerfile
    assert "COPY --from" not in text.replace("COPY --from=own-development /opt", "")
    assert "rm -r /usr/local/cuda" not in text
