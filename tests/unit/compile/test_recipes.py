"""The shipped recipes: each is for something, compiles for it, and names its versions."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import pytest
from samples import plan_of, shipped_images, shipped_project

from builder.compile import spec
from builder.model import BlockUse, PlannedImage
from builder.model.inputs import source_folder

# The families that the project promises.
PROMISED = (
    *("hpc-base", "cuda-base", "python-mpi", "pytorch", "tensorflow", "horovod", "chainermn"),
    *("biggan", "mlperf-maskrcnn", "mlperf-ssd", "mlperf-gnmt", "mlperf-transformer"),
    *("hpc-bench", "mpi-source", "jax", "tensorflow-release", "horovod-pytorch", "lammps"),
    "ml-stack",
)
RED_HAT = ("ubi", "rocky", "alma", "centos")


@functools.cache
def samples() -> tuple[PlannedImage, ...]:
    """An image for each recipe, base, architecture, CUDA and way to an MPI."""
    seen: dict[object, PlannedImage] = {}
    for image in shipped_images():
        cell, route = image.cell, image.mpi.route if image.mpi else ""
        key = (cell.recipe, cell.base, cell.arch, cell.cuda, image.mpi and image.mpi.family, route)
        seen.setdefault(key, image)
    return tuple(seen.values())


@functools.cache
def dockerfile(identifier: str) -> str:
    """The Dockerfile of a sample, which has a definition, too."""
    image = next(each for each in samples() if each.identifier == identifier)
    made = spec.compile_spec(image, run_checks="#!/bin/sh\n")
    assert made.singularity
    return made.dockerfile


def blocks(image: PlannedImage) -> Iterator[BlockUse]:
    for stage in image.stages:
        yield from (*stage.development, *stage.runtime)


def test_all_that_are_promised_are_there_and_can_be_built() -> None:
    planned = {image.cell.recipe for image in shipped_images()}
    assert set(PROMISED) <= planned
    assert set(shipped_project().recipes) == planned


@pytest.mark.parametrize("name", sorted(shipped_project().recipes))
def test_each_compiles_for_all_that_it_takes(name: str) -> None:
    """hpccm's warnings are errors: `compile_spec` raises."""
    for image in samples():
        if image.cell.recipe == name:
            assert dockerfile(image.identifier)


def test_what_looks_for_the_drivers_library_also_looks_for_one_in_the_image() -> None:
    """A GPU is needed for the first, and none for the second."""
    for image in samples():
        checks = {check.name for check in image.checks}
        assert ("cuda-clean" in checks) == ("gpu-library" in checks) == (image.cuda is not None)


def test_where_nccl_is_asked_for_it_is_checked() -> None:
    asked = {
        name
        for name, recipe in shipped_project().recipes.items()
        for use in recipe.development
        if use.name == "cuda" and "nccl" in use.arguments
    }
    assert {"cuda-base", "chainermn", "tensorflow", "hpc-bench-osu"} <= asked
    for image in samples():
        names = [check.name for check in image.checks]
        if image.cuda is None:
            assert [name for name in names if name.startswith(("cuda", "gpu"))] == []
        elif asked & {stage.name for stage in image.stages}:
            needed = ["cuda-runtime", "gpu-code", "gpu-compute", "gpu-nccl"]  # the first builds
            assert [name for name in names if name in needed] == needed


def test_wget_is_installed_before_it_runs() -> None:
    """hpccm's generic blocks run it, and leave it to the recipe to install it."""
    wrong = []
    for image in samples():
        for stages in dockerfile(image.identifier).split(" AS runtime"):
            before, runs, _ = stages.partition("wget -")
            if runs and not re.search(r"(?m)^ {8}wget\b", before):
                wrong.append(image.identifier)
    assert wrong == []


def test_packages_are_named_for_the_family_of_the_base() -> None:
    """hpccm installs nothing, without a word, where a family has no list."""
    wrong = [
        f"{image.identifier}: {use.where}"
        for image in samples()
        for use in blocks(image)
        if use.name == "packages" and "ospackages" not in use.arguments
        for family in ["yum" if image.base.name.startswith(RED_HAT) else "apt"]
        if not use.arguments.get(family)
    ]
    assert wrong == []


def locked_files(image: PlannedImage) -> set[str]:
    """The places in the image of the files that the lock has."""
    return {
        f"{source_folder(recipe)}/{source.file}"
        for source in image.sources
        for recipe in source.recipes
    }


def test_python_packages_are_of_one_version() -> None:
    """Each is named with its version, or is a wheel that the lock has, checksum and all."""
    loose = {
        str(use.where): package
        for image in samples()
        for use in blocks(image)
        if use.name == "pip"
        for package in use.arguments.get("packages", ())
        if not re.search(r"==\d", package) and package not in locked_files(image)
    }
    assert loose == {}


def test_every_image_is_looked_at() -> None:
    """Each has the check of its architecture, and one of what it is for."""
    for image in samples():
        names = [check.name for check in image.checks]
        assert "architecture" in names, image.identifier
        assert len(names) > 1, image.identifier


def test_a_clone_is_of_a_commit_or_a_tag() -> None:
    for image in samples():
        for use in blocks(image):
            if "repository" in use.arguments and str(use.arguments["repository"]).endswith(".git"):
                named = use.arguments.get("commit") or use.arguments.get("branch", "")
                assert re.fullmatch(r"[0-9a-f]{40}|v?\d[\d.]*", named), use.where


def run_of(check: str, image: PlannedImage) -> str:
    return next(one.run for one in image.checks if one.name == check)


def test_wheels_are_for_the_architecture_of_the_image() -> None:
    recipes = ("jax", "tensorflow-release", "ml-stack")
    for image in (image for image in shipped_images() if image.cell.recipe in recipes):
        files = {text for use in blocks(image) for text in use.arguments.get("packages", ())}
        wheels = {file for file in files if file.endswith(".whl")}
        ends = ("-any.whl", f"_{image.cell.arch}.whl")
        assert wheels
        assert {file for file in wheels if not file.endswith(ends)} == set()


def test_power_has_no_wheels_of_the_newest_frameworks() -> None:
    """What the maintainer says of them is what `explain` prints."""
    for recipe in ("jax", "tensorflow-release"):
        plan = plan_of(recipe)
        archs = {image.cell.arch for image in plan.images if image.cell.recipe == recipe}
        assert archs == {"x86_64", "aarch64"}
        [cell] = [
            left
            for left in plan.left_out
            if (left.cell.recipe, left.cell.arch) == (recipe, "ppc64le") and len(left.reasons) == 1
        ]
        assert cell.reasons[0].text.startswith("neither the Python package index nor Debian has")


def test_the_stack_of_each_architecture_is_what_there_is_for_it() -> None:
    """Keras has a backend, and Numba comes from Debian or is compiled."""
    for image in (image for image in shipped_images() if image.cell.recipe == "ml-stack"):
        power = image.cell.arch == "ppc64le"
        text = dockerfile(image.identifier)
        assert f"KERAS_BACKEND={'torch' if power else 'jax'}" in text
        assert ("python3-torch" in text) == ("/numba-" in text) == power
        assert ("python3-numba" in text) == ("/jaxlib-" in text) == (not power)
        assert ("/usr/local/lib/python3.13/dist-packages/nvidia" in text) == bool(image.cuda)
        wanted = " ".join(image.cuda.capabilities) if image.cuda else ""
        assert run_of("ml-stack", image).split(".py")[1].strip() == wanted
    cells = {(one.cell.arch, one.cell.cuda) for one in plan_of("ml-stack").images}
    assert {("ppc64le", "none"), ("aarch64", "13.0"), ("x86_64", "13.0")} <= cells


def test_grace_has_pytorch_with_cuda_and_tensorflow_without() -> None:
    """TensorFlow's wheels for aarch64 have no CUDA."""
    arm = [image for image in shipped_images() if image.cell.arch == "aarch64"]
    [pytorch] = [image for image in arm if image.cell.recipe == "pytorch-grace"]
    assert pytorch.cell.cuda == "13.0"
    assert "pytorch-gpu-check.py 90 --" in run_of("pytorch-gpu", pytorch)
    tensorflow = [image for image in arm if image.cell.recipe == "tensorflow"]
    assert tensorflow
    for image in tensorflow:
        packages = [text for use in blocks(image) for text in use.arguments.get("packages", ())]
        assert "tensorflow-cpu-aws==2.12.1" in packages
        assert image.cuda is None
    power = next(image for image in plan_of("pytorch").images if image.cell.cuda == "12.4")
    assert "pytorch-gpu-check.py 70 --" in run_of("pytorch-gpu", power)


def test_build_systems_that_choose_a_compiler_for_nvcc_choose_one_that_it_takes() -> None:
    """nccl-tests' make, and the CMake of PyTorch and Horovod, hand nvcc the CXX of the rest."""
    choosing = ("hpc-bench-osu", "horovod", "pytorch")
    seen = set()
    for image in samples():
        gcc = image.cuda and (image.cuda.gcc or image.cuda.packages.gcc)
        text = dockerfile(image.identifier) if gcc and image.cell.recipe in choosing else ""
        if "pytorch.git" in text or "horovod" in text or "nccl-tests.git" in text:
            seen.add(image.cell.recipe)
            assert f"CXX=g++-{gcc}" in text, image.identifier
    assert seen == {*choosing}


def test_horovod_is_told_of_no_nvcc_where_there_is_none() -> None:
    """Its CMake takes HOROVOD_CUDA_HOME for the place of a compiler, even if it is empty."""
    for image in (image for image in samples() if image.cell.recipe == "horovod"):
        assert ("HOROVOD_CUDA_HOME=" in dockerfile(image.identifier)) == (image.cuda is not None)
