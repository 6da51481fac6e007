"""NVIDIA's HPC SDK as a cell's CUDA: which release has which, and what an image keeps of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from golden_cells import golden_project
from samples import block, recipe
from test_routes import compiled, one, planned, with_axes

from builder.model import BlockUse, LeftOut, PlannedImage, Project
from builder.model.contract import as_document, contract_of
from builder.model.exact_json import member

POWER = "hpc-sdk-1.0-almalinux8-cuda11.8-openmpi4.1-ppc64le"
HOME = "/opt/nvidia/hpc_sdk/Linux_ppc64le/24.1"


def with_recipe(*development: BlockUse, parent: str | None = None) -> Project:
    """The golden project, with CUDA 12.3 on its axis and a recipe `own`."""
    own = recipe("own", development=development, parent=parent)
    project = with_axes(golden_project(), cuda=("12.3",))
    return dataclasses.replace(project, recipes={**project.recipes, "own": own})


def sdk(version: str, **more: Any) -> BlockUse:
    return block("cuda", sdk={"version": version, "eula": True}, **more)


def own(version: str, cuda: str, arch: str) -> PlannedImage | LeftOut:
    plan = planned(with_recipe(sdk(version)), f"own-1.0-almalinux8-cuda{cuda}-{arch}")
    return plan.images[0] if plan.images else plan.left_out[0]


def reasons(left: PlannedImage | LeftOut) -> list[str]:
    assert isinstance(left, LeftOut)
    return [str(reason) for reason in left.reasons]


def test_the_last_release_for_power_is_24_1() -> None:
    image = own("24.1", "12.3", "ppc64le")
    assert isinstance(image, PlannedImage)
    text = compiled(image).dockerfile
    assert "/hpc-sdk/24.1/nvhpc_2024_241_Linux_ppc64le_cuda_multi.tar.gz" in text
    assert "NVHPC_ACCEPT_EULA=accept NVHPC_DEFAULT_CUDA=12.3" in text
    assert reasons(own("24.5", "12.4", "ppc64le")) == [
        "world: HPC SDK 24.5 has no CUDA 12.4 for ppc64le; available: none"
    ]
    releases = golden_project().facts.sdks
    assert [one.version for one in releases if "ppc64le" in one.cuda] == ["23.9", "24.1"]


def test_a_cuda_that_another_release_brings_is_told() -> None:
    assert reasons(own("24.1", "11.8", "ppc64le")) == [
        "world: HPC SDK 24.1 has no CUDA 11.8 for ppc64le; available: 12.3; HPC SDK 23.9 has it"
    ]


def test_a_release_that_no_table_has_is_no_way() -> None:
    [reason] = reasons(own("99.1", "12.4", "x86_64"))
    assert reason.startswith("world: unknown HPC SDK release: 99.1; valid: 23.9, 24.1, 24.5")


def test_each_cuda_of_an_sdk_is_a_release_for_its_architectures() -> None:
    known = golden_project().facts
    for release in known.sdks:
        assert release.sources
        for arch, versions in release.cuda.items():
            for version in versions:
                assert arch in known.cuda[version].architectures, (release.version, version, arch)


def test_the_image_keeps_what_may_be_redistributed_and_no_stub() -> None:
    image = own("24.1", "12.3", "ppc64le")
    assert isinstance(image, PlannedImage)
    _, final = compiled(image).dockerfile.split(" AS runtime")
    copies = [line.split() for line in final.splitlines() if f" {HOME}/" in line]
    copied = {line[2]: line[3] for line in copies if line[0] == "COPY"}
    for folder in (
        "cuda/12.3/targets/ppc64le-linux/lib",
        "math_libs/12.3/targets/ppc64le-linux/lib",
        "comm_libs/12.3/nccl/lib",
        "compilers/lib",
    ):
        # with `lib/*`, the folder of stubs would be emptied among the libraries
        assert copied.pop(f"{HOME}/REDIST/{folder}/lib*.so*") == f"{HOME}/{folder}/"
    assert copied == {}
    assert "/etc/ld.so.conf.d/nvhpc.conf && \\\n    ldconfig" in final
    assert "comm_libs/mpi" not in final


def test_the_contract_is_that_of_its_cuda_without_an_update() -> None:
    cuda = member(as_document(contract_of(one(golden_project(), POWER))), "cuda")
    assert cuda["version"] == "11.8"
    assert cuda["driver"] == "450.80.02"
    assert "update" not in cuda
    image = one(golden_project(), POWER)
    assert image.stages[-1].environment == {
        "CUDA_HOME": "/opt/nvidia/hpc_sdk/Linux_ppc64le/23.9/cuda/11.8",
        "NVHPC_ROOT": "/opt/nvidia/hpc_sdk/Linux_ppc64le/23.9",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_REQUIRE_CUDA": "driver>=450.80.2",
    }


def test_what_is_built_after_it_takes_its_cuda_and_its_compilers() -> None:
    project = with_recipe(
        block("cuda", capabilities=["70"]),
        block("ucx", version="1.18.1", toolchain="nvhpc"),
        parent="hpc-sdk",
    )
    text = compiled(one(project, POWER.replace("hpc-sdk", "own"))).dockerfile
    assert text.count("nvhpc_2023_239_Linux_ppc64le") == 5  # one step; its child brings no other
    assert "--with-cuda=/opt/nvidia/hpc_sdk/Linux_ppc64le/23.9/cuda/11.8" in text
    assert "CC=nvc " in text


def test_an_sdk_after_another_toolkit_is_refused() -> None:
    project = with_recipe(sdk("23.9"), parent="cuda-base")
    [left] = planned(project, "own-1.0-almalinux8-cuda11.8-openmpi4.1-ppc64le").left_out
    [reason] = reasons(left)
    assert reason == (
        "maintainer: recipes/cuda-base.yaml:11 installs CUDA before the HPC SDK of "
        "recipes/core.yaml:5"
    )


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_cells_of_today(arch: str) -> None:
    image = one(golden_project(), f"hpc-sdk-1.0-ubuntu22.04-cuda13.0-openmpi4.1-{arch}")
    text = compiled(image).dockerfile
    assert f"nvhpc_2025_259_Linux_{arch}_cuda_multi.tar.gz" in text
    target = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}[arch]
    assert f"/REDIST/cuda/13.0/targets/{target}/lib/lib*.so* " in text
