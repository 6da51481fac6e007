"""The blocks `cuda` and `mpi`, and `when`: what they become in a plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from samples import (
    EVERYTHING,
    base,
    block,
    check,
    compare_with_golden,
    cuda_release,
    facts_with,
    project,
    recipe,
    shipped_project,
)

from builder.compile import spec
from builder.model import (
    BlockUse,
    CudaSupport,
    PackagedCuda,
    PackagedExtra,
    PackagedMpi,
    Plan,
    PlannedImage,
    Site,
)
from builder.plan import make_plan, nvidia

NCCL = PackagedExtra(version="2.22.3", development=("libnccl-dev",), runtime=("libnccl2",))
OWN = PackagedCuda(
    version="12.4",
    development=("nvcc",),
    runtime=("libcudart12",),
    gcc="13",
    prepare=("enable non-free",),
    clean=("remove the driver",),
    capabilities=("70",),
    extras={"nccl": NCCL},
)
EVERY_WAY = CudaSupport(image="debian13", repository="debian13", distribution=(OWN,))


def planned(root: Path, **parts: Any) -> Plan:
    given = {"facts": facts_with(cuda_release()), **parts}
    return make_plan(project(root, **given), EVERYTHING, compiler="hpccm 1", may_be_empty=True)


def with_cuda(root: Path, *, site: Site | None = None, **arguments: Any) -> PlannedImage:
    [image] = planned(
        root,
        recipes=[recipe(development=(block("cuda", **arguments),))],
        bases=[base(cuda=EVERY_WAY)],
        cuda=("12.4",),
        site=site,
    ).images
    return image


def by(*routes: str) -> Site:
    return Site(cuda_routes=routes)


def shape(uses: tuple[BlockUse, ...]) -> list[tuple[str, Any]]:
    return [(use.name, use.arguments.get("ospackages", use.arguments)) for use in uses]


def test_nvidias_image_is_the_base_of_both_stages(tmp_path: Path) -> None:
    image = with_cuda(tmp_path)
    assert image.base_image == "docker.io/nvidia/cuda:12.4.1-devel-debian13"
    assert image.runtime_image == "docker.io/nvidia/cuda:12.4.1-runtime-debian13"
    assert not image.is_bootstrapped
    assert not [use for use in image.stages[0].development if use.name == "packages"]


def test_nvidias_repository_comes_onto_the_plain_base(tmp_path: Path) -> None:
    image = with_cuda(tmp_path, site=by("repository"))
    assert image.is_bootstrapped
    [use] = [use for use in image.stages[0].development if use.name == "packages"]
    assert "cuda-minimal-build-12-4" in use.arguments["ospackages"]
    assert use.arguments["apt_keys"]
    [use] = [use for use in image.stages[0].runtime if use.name == "packages"]
    assert "cuda-libraries-12-4" in use.arguments["ospackages"]


def test_the_distributions_packages_are_prepared_and_cleaned_in_each_stage(tmp_path: Path) -> None:
    image = with_cuda(tmp_path, site=by("distribution"), nccl=True)
    assert shape(image.stages[0].development) == [
        ("shell", {"commands": ["enable non-free"]}),
        ("packages", ["nvcc", "libnccl-dev"]),
        ("shell", {"commands": ["remove the driver"]}),
    ]
    assert shape(image.stages[0].runtime) == [
        ("shell", {"commands": ["enable non-free"]}),
        ("packages", ["libcudart12", "libnccl2"]),
        ("shell", {"commands": ["remove the driver"]}),
    ]


def test_an_optional_extra_comes_where_the_route_has_it(tmp_path: Path) -> None:
    wanted = {"nccl": "optional", "cudnn": "optional"}
    image = with_cuda(tmp_path, site=by("distribution"), **wanted)
    assert shape(image.stages[0].runtime)[1] == ("packages", ["libcudart12", "libnccl2"])
    image = with_cuda(tmp_path, site=by("distribution"))
    assert shape(image.stages[0].runtime)[1] == ("packages", ["libcudart12"])


@pytest.mark.parametrize(
    ("version", "driver", "required"),
    [
        ("12.4", "525.60.13", "driver>=525.60.13"),
        # semantic versions have no leading zeros, and the container toolkit takes no others
        ("12.4", "450.80.02", "driver>=450.80.2"),
        ("10.2", "440.33", "cuda>=10.2"),
        ("11.0", "450.36.06", "driver>=450.36.6"),
        ("11.0", "", "cuda>=11.0"),
    ],
)
def test_images_require_the_least_driver(
    tmp_path: Path, version: str, driver: str, required: str
) -> None:
    own = dataclasses.replace(OWN, version=version)
    [image] = planned(
        tmp_path,
        recipes=[recipe(development=(block("cuda"),))],
        bases=[base(cuda=CudaSupport(distribution=(own,)))],
        cuda=(version,),
        facts=facts_with(cuda_release(version, driver=driver)),
    ).images
    assert image.stages[0].environment["NVIDIA_REQUIRE_CUDA"] == required


def test_names_at_nvidia_change_with_releases() -> None:
    """Around the releases from which on something is called otherwise or is elsewhere."""
    facts = shipped_project().facts
    lines = []
    for version in ("10.1", "10.2", "11.0", "11.1", "11.2"):
        for name in ("ubuntu18.04", "ubi8"):
            own, release = shipped_project().bases[name], facts.cuda[version]
            packages = nvidia.toolkit_packages(release, own)
            lines += [f"# CUDA {version} on {name}", *map(str, nvidia.first_steps(release, own))]
            lines += [" ".join(packages.development), " ".join(packages.runtime), *packages.clean]
            for arch in ("x86_64", "ppc64le", "aarch64"):
                extras = nvidia.extras(facts, release, own, arch, by_image=False)
                found = [f"{name} {', '.join(one.development)}" for name, one in extras.items()]
                given = nvidia.install_arguments(version, own, arch, libraries=True)
                keys = given.get("apt_keys") or given["yum_keys"]
                images = nvidia.image_names(release, own, arch)
                lines += [
                    f"{arch}: {' '.join(images)}",
                    f"  {keys}",
                    *(f"  {one}" for one in found),
                ]
    compare_with_golden("\n".join([*lines, ""]), "plan-nvidia.txt")


def test_the_sites_order_of_routes_decides(tmp_path: Path) -> None:
    routes = [
        image.cuda.route
        for order in (by("distribution", "image"), by("repository", "image"), Site())
        for image in [with_cuda(tmp_path, site=order)]
        if image.cuda
    ]
    assert routes == ["distribution", "repository", "image"]


def test_a_capability_that_the_route_has_no_code_for_is_the_worlds_reason(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        recipes=[recipe(development=(block("cuda", capabilities=["90"]),))],
        bases=[base(cuda=EVERY_WAY)],
        facts=facts_with(cuda_release(), cuda_release("12.6", capabilities=("90",))),
        cuda=("12.4",),
    )
    [left] = plan.left_out
    assert [str(reason) for reason in left.reasons] == [
        (
            "world: CUDA 12.4 cannot compile for sm_90, which recipes/core.yaml:5 needs, "
            "only for sm_70, sm_80; CUDA 12.6 to 12.6 can (https://docs.example.org/cuda)"
        )
    ]


def test_an_image_without_a_cuda_block_is_not_called_a_cuda_image(tmp_path: Path) -> None:
    [left] = planned(tmp_path, bases=[base(cuda=EVERY_WAY)], cuda=("12.4",)).left_out
    assert [reason.layer for reason in left.reasons] == ["maintainer"]
    assert "does not install CUDA" in left.reasons[0].text


def test_what_needs_a_toolkit_is_not_made_without(tmp_path: Path) -> None:
    needy = recipe(development=(block("cuda"), block("mpi")))
    [left] = planned(tmp_path, recipes=[needy], bases=[base(cuda=EVERY_WAY)]).left_out
    assert [reason.text for reason in left.reasons] == [
        "recipe core needs cuda, but the cell has none (recipes/core.yaml:5)",
        "recipe core needs mpi, but the cell has none (recipes/core.yaml:5)",
    ]


def test_when_narrows_a_block_to_some_cells(tmp_path: Path) -> None:
    some = dataclasses.replace(block(ospackages=["numactl"]), when={"arch": ("ppc64le",)})
    optional = dataclasses.replace(block("cuda"), when={"cuda": (">=1",)})
    plan = planned(
        tmp_path,
        recipes=[recipe(development=(some, optional))],
        bases=[base(cuda=CudaSupport(distribution=(OWN,)))],
        arch=("x86_64", "ppc64le"),
        cuda=("none", "12.4"),
    )
    found = {
        image.identifier: [names for name, names in shape(image.stages[0].development)]
        for image in plan.images
    }
    cuda = [{"commands": ["enable non-free"]}, ["nvcc"], {"commands": ["remove the driver"]}]
    assert found == {
        "core-1.0-debian13-x86_64": [],
        "core-1.0-debian13-ppc64le": [["numactl"]],
        "core-1.0-debian13-cuda12.4-x86_64": cuda,
        "core-1.0-debian13-cuda12.4-ppc64le": [["numactl"], *cuda],
    }


def with_mpi(
    root: Path, mpi: str, *, distribution: str = "rocky", **arguments: Any
) -> PlannedImage:
    mpich = PackagedMpi(
        family="mpich", version="4.2.1", development=("libmpich-dev",), runtime=("mpich",)
    )
    [image] = planned(
        root,
        recipes=[recipe(development=(block("mpi", **arguments),))],
        bases=[base(distribution=distribution, mpi=(*base().mpi, mpich))],
        mpi=(mpi,),
    ).images
    return image


def test_an_mpi_of_the_distribution(tmp_path: Path) -> None:
    stage = with_mpi(tmp_path, "openmpi5.0").stages[0]
    assert shape(stage.development) == [("packages", ["libmpi-dev"])]
    assert shape(stage.runtime) == [("packages", ["mpi-bin"])]


def test_an_mpi_from_source_is_hpccms_block(tmp_path: Path) -> None:
    image = with_mpi(tmp_path, "openmpi4.1.8", source={"cuda": False})
    assert image.mpi is not None
    assert image.mpi.route == "source"
    assert shape(image.stages[0].development) == [("openmpi", {"version": "4.1.8", "cuda": False})]
    assert image.stages[0].runtime == ()


def test_an_mpi_of_the_host_is_compiled_against_its_twin_and_left_out_of_the_image(
    tmp_path: Path,
) -> None:
    image = with_mpi(tmp_path, "intelmpi2021.10")
    assert image.mpi is not None
    assert image.mpi.route == "host"
    assert shape(image.stages[0].development) == [("packages", ["libmpich-dev"])]
    assert image.stages[0].runtime == ()


def test_a_recipe_can_take_some_routes_alone(tmp_path: Path) -> None:
    [left] = planned(
        tmp_path,
        recipes=[recipe(development=(block("mpi", routes=["source"]),))],
        mpi=("openmpi5.0",),
    ).left_out
    [reason] = left.reasons
    assert str(reason) == (
        "base image: to build openmpi5.0 from source, the recipe (mpi.source.version) or the axis "
        "value must name a full release"
    )


def test_a_recipe_can_name_the_release_that_it_builds_from_source(tmp_path: Path) -> None:
    own = block("mpi", routes=["source"], source={"version": "5.0.9"})
    plan = planned(
        tmp_path,
        recipes=[recipe(development=(own,))],
        mpi=("openmpi5.0", "openmpi4.1"),
    )
    [image], [left] = plan.images, plan.left_out
    assert image.mpi is not None
    assert (image.cell.mpi, image.mpi.version) == ("openmpi5.0", "5.0.9")
    assert shape(image.stages[0].development) == [("openmpi", {"version": "5.0.9"})]
    assert [str(reason) for reason in left.reasons] == [
        "base image: the recipe builds 5.0.9 from source, not openmpi4.1"
    ]


def test_a_cell_where_a_block_does_not_work_is_left_out(tmp_path: Path) -> None:
    given = project(
        tmp_path, recipes=[recipe(development=(block("mkl"),))], arch=("x86_64", "ppc64le")
    )
    plan = make_plan(given, EVERYTHING, compiler="hpccm 1", limit_reason=spec.limit_reason)
    assert [image.cell.arch for image in plan.images] == ["x86_64"]
    [left] = plan.left_out
    assert left.reasons[0].layer == "world"
    assert left.reasons[0].text.startswith("block mkl (recipes/core.yaml:5): ")


def test_a_check_of_the_gpu_is_for_cells_with_cuda_alone(tmp_path: Path) -> None:
    checks = [check(needs=()), check("gpu", needs=("gpu",)), check("nvcc", needs=("cuda",))]
    own = dataclasses.replace(block("cuda"), when={"cuda": ("12.4",)})
    plan = planned(
        tmp_path,
        recipes=[recipe(development=(own,), checks=("hello", "gpu", "nvcc"))],
        bases=[base(cuda=EVERY_WAY)],
        cuda=("none", "12.4"),
        checks=checks,
    )
    found = {one.cell.cuda: [c.name for c in one.checks] for one in plan.images}
    assert found == {"none": ["hello"], "12.4": ["hello", "gpu", "nvcc"]}
    assert [one.stages[0].checks for one in plan.images if not one.cuda] == [("hello",)]


@pytest.mark.parametrize("distribution", ["debian", "ubuntu"])
def test_debians_mpich_is_no_twin_of_intel_mpi(distribution: str, tmp_path: Path) -> None:
    mpich = PackagedMpi(family="mpich", version="4.2.1", development=(), runtime=())
    [left] = planned(
        tmp_path,
        recipes=[recipe(development=(block("mpi", routes=["host"]),))],
        bases=[base(distribution=distribution, mpi=(mpich,))],
        mpi=("intelmpi2021.10",),
    ).left_out
    assert "do not find Intel MPI's libmpi.so.12" in left.reasons[0].text
