"""Routes to CUDA and to MPI: which is taken, in which words it is refused, and what it brings.

The facts, the bases and the recipes are the shipped ones, with `golden_cells.RECIPES`.
UPDATE_GOLDEN=1 writes the explanations in tests/golden/explain anew: read the difference.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import pytest
from golden_cells import CELLS, REFUSED, golden_images, golden_project
from samples import GOLDEN, block, compare_with_golden, recipe, shipped_project

from builder.build.listings import decisions, explanation
from builder.compile import spec
from builder.model import BlockUse, LeftOut, Plan, PlannedImage, Project, Selection, Site
from builder.model.contract import contract_of
from builder.model.site import at_mirror
from builder.plan import make_plan
from builder.plan.nvidia import mirror_of_namespace

FOLDER = GOLDEN / "explain"
MIRROR = {"docker.io": "mirror.example/hub", "registry.access.redhat.com": "mirror.example/redhat"}


def planned(project: Project, *images: str) -> Plan:
    selection = Selection(images=images)
    return make_plan(project, selection, compiler=spec.COMPILER, may_be_empty=True)


@functools.cache
def left_out() -> Mapping[str, LeftOut]:
    plan = planned(with_axes(golden_project(), cuda=("11.8", "12.2")), *REFUSED)
    return {one.cell.identifier: one for one in plan.left_out}


def with_axes(project: Project, **more: tuple[str, ...]) -> Project:
    """The project with values added to axes of its matrix."""
    axes = {
        axis: tuple(dict.fromkeys((*values, *more.get(axis, ()))))
        for axis, values in project.matrix.axes.items()
    }
    return dataclasses.replace(project, matrix=dataclasses.replace(project.matrix, axes=axes))


def at(site: Site, project: Project | None = None) -> Project:
    return dataclasses.replace(project or golden_project(), site=site)


def one(project: Project, identifier: str) -> PlannedImage:
    [image] = planned(project, identifier).images
    return image


def compiled(image: PlannedImage) -> Any:
    return spec.compile_spec(image, run_checks="#!/bin/sh\n")


@pytest.mark.parametrize("identifier", [*CELLS, *REFUSED])
def test_explanation_is_in_these_words(identifier: str) -> None:
    if identifier in REFUSED:
        plan = Plan(images=(), left_out=(left_out()[identifier],))
    else:
        plan = Plan(images=(golden_images()[identifier],), left_out=())
    decided = functools.partial(decisions, host="x86_64")
    compare_with_golden(f"{explanation(plan, decided)}\n", f"explain/{identifier}.txt")


def test_without_the_handler_of_set_up_nothing_is_lent() -> None:
    images = [one for one in golden_images().values() if one.base.name == "debian13"]
    for image in images:
        plan = Plan(images=(image,), left_out=())
        closed = functools.partial(decisions, host="x86_64", opened=lambda _arch: False)
        found = explanation(plan, closed)
        refused = "native tools: none, set-up did not install the kernel's handler" in found
        assert refused is (image.cell.arch != "x86_64"), found


def test_each_golden_explanation_has_its_cell() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*CELLS, *REFUSED}


def test_golden_cells_cover_the_whole_house() -> None:
    cells = [image.cell for image in golden_images().values()]
    axes = golden_project().matrix.axes
    assert len(cells) >= 30
    for axis in ("arch", "base", "cuda"):
        missing = {"12.5"} if axis == "cuda" else set()  # among the refused
        assert {cell.axis(axis) for cell in cells} == set(axes[axis]) - missing
    families = {image.mpi.family for image in golden_images().values() if image.mpi}
    assert families == {"openmpi", "mpich", "mvapich2", "intelmpi", "craympich"}
    routes = {image.cuda.route for image in golden_images().values() if image.cuda}
    assert routes == {"image", "repository", "distribution", "wheels", "sdk", "recipe"}


OWN = "own-1.0-debian13-cuda12.9-x86_64"


def with_own(*development: BlockUse) -> Project:
    """The golden project with a recipe `own`: no toolkit of CUDA 12.9 is to be had for its base."""
    project = golden_project()
    return dataclasses.replace(
        project, recipes={**project.recipes, "own": recipe("own", development=development)}
    )


def test_packages_of_a_recipe_bring_a_cuda_that_the_base_has_no_route_to() -> None:
    bare, toolkit = block("cuda", toolkit=False), block("cuda")
    [left] = planned(with_own(toolkit), OWN).left_out
    assert "debian13 has no route to CUDA 12.9 for x86_64" in str(left.reasons[0])
    image = one(with_own(block("cuda", toolkit=False, capabilities=["90", "70"])), OWN)
    assert image.cuda is not None
    assert (image.stages[0].development, image.stages[0].runtime, image.sources) == ((), (), ())
    assert image.stages[0].environment["NVIDIA_REQUIRE_CUDA"] == "driver>=525.60.13"
    assert "CUDA_HOME" not in image.stages[0].environment
    needed = contract_of(image).cuda
    assert needed is not None
    assert (needed.capabilities, needed.update, needed.driver) == (("70", "90"), "", "525.60.13")
    assert needed.ptx == ""
    [left] = planned(with_own(block("cuda", toolkit=False, capabilities=["999"])), OWN).left_out
    assert "CUDA 12.9 cannot compile for sm_999" in str(left.reasons[0])
    every = one(with_own(bare), OWN).cuda
    assert every is not None
    assert every.capabilities == golden_project().facts.cuda["12.9"].capabilities
    [left] = planned(with_own(bare, toolkit), OWN).left_out
    [reason] = map(str, left.reasons)
    assert reason.endswith("needs a toolkit, but recipes/core.yaml:5 says toolkit: false")


def with_packages_on_noble(project: Project) -> Project:
    """A project whose facts say that NVIDIA packages CUDA 12.2 for Ubuntu 24.04."""
    release = project.facts.cuda["12.2"]
    more = {**release.repositories, "x86_64": ("ubuntu2404",)}
    release = dataclasses.replace(release, repositories=more)
    facts = dataclasses.replace(project.facts, cuda={**project.facts.cuda, "12.2": release})
    return dataclasses.replace(with_axes(project, cuda=("12.2",)), facts=facts)


def test_an_older_compiler_where_the_bases_own_is_too_new_for_nvcc() -> None:
    project = with_packages_on_noble(golden_project())
    image = one(project, "cuda-alone-1.0-ubuntu24.04-cuda12.2-x86_64")
    assert image.cuda is not None
    assert image.cuda.gcc == "12"
    assert "cuda: nvcc compiles with gcc 12; the base's default is 13" in image.decided
    text = compiled(image).dockerfile
    assert "        g++-12 \\\n" in text
    assert 'NVCC_PREPEND_FLAGS="-ccbin g++-12"' in text


def test_a_release_in_no_table_is_refused() -> None:
    project = with_axes(golden_project(), cuda=("12.7",))
    [out] = planned(project, "cuda-alone-1.0-ubi8-cuda12.7-x86_64").left_out
    assert str(out.reasons[0]).startswith("world: unknown CUDA release: 12.7")


@pytest.mark.parametrize(
    "identifier",
    ["hpc-base-1.0-ubuntu22.04-openmpi4.1-aarch64", "cuda-alone-1.0-ubi9-cuda12.9-aarch64"],
)
def test_a_sites_mirror_changes_where_from_and_nothing_else(identifier: str) -> None:
    here, there = golden_images()[identifier], one(at(Site(registries=MIRROR)), identifier)
    assert here.content_key == there.content_key
    own, mirrored = compiled(here), compiled(there)
    assert mirrored.dockerfile.count("FROM mirror.example/hub/") == 2
    assert mirrored.singularity.count("From: mirror.example/hub/") == 2
    for text in ("dockerfile", "singularity"):
        changed = getattr(mirrored, text).replace("mirror.example/hub/", "docker.io/")
        assert [line for line in changed.splitlines() if "build-images; do" not in line] == [
            line for line in getattr(own, text).splitlines() if "build-images; do" not in line
        ]


DELETED = "cuda-alone-1.0-centos7-cuda10.1-ppc64le"


def test_images_that_go_next_come_after_packages() -> None:
    """NVIDIA deletes the images of 11.8 next: a build would break on the day."""
    for identifier, route in (
        ("cuda-alone-1.0-ubuntu20.04-cuda11.8-aarch64", "repository"),
        ("cuda-alone-1.0-ubi8-cuda12.4-ppc64le", "image"),
    ):
        image = one(golden_project(), identifier)
        assert image.cuda is not None
        assert image.cuda.route == route
    site = Site(cuda_routes=("image", "repository", "distribution"))
    asked = one(at(site), "cuda-alone-1.0-ubuntu20.04-cuda11.8-aarch64")
    assert asked.cuda is not None
    assert asked.cuda.route == "image"


def test_what_is_deleted_is_in_the_table_of_facts() -> None:
    known = shipped_project().facts.cuda
    assert all(
        release.deleted_by("ubi7") for v, release in known.items() if int(v.split(".")[0]) < 11
    )
    assert known["11.8"].deleted_by("centos7")
    assert not known["11.8"].deleted_by("ubuntu22.04")
    assert known["11.8"].leaving
    assert not known["12.4"].leaving


def test_tags_are_those_of_a_lines_newest_update() -> None:
    """NVIDIA replaces them: of 13.0 it made 13.0.0 to 13.0.3, and the last alone stays."""
    known = shipped_project().facts.cuda
    found = {version: known[version].image_tag for version in ("12.8", "12.9", "13.0", "13.2")}
    assert found == {"12.8": "12.8.1", "12.9": "12.9.1", "13.0": "13.0.3", "13.2": "13.2.1"}


@pytest.mark.parametrize(
    ("identifier", "update"),
    [
        ("cuda-base-1.0-ubuntu24.04-cuda12.9-openmpi4.1-x86_64", "12.9.1"),
        ("cuda-base-1.0-debian12-cuda12.9-openmpi4.1-x86_64", "12.9.2"),
        ("cuda-base-1.0-ubuntu22.04-cuda12.4-openmpi4.1-x86_64", "12.4.1"),
    ],
)
def test_the_update_is_that_of_the_images_where_the_cell_starts_from_them(
    identifier: str, update: str
) -> None:
    """The table of facts lists packages of 12.9.2, and images of 12.9.1."""
    image = one(shipped_project(), identifier)
    assert image.cuda
    assert image.cuda.update == update
    needed = contract_of(image).cuda
    assert needed
    assert needed.update == update


def test_a_mirror_of_the_whole_registry_brings_no_deleted_tag_back() -> None:
    image = one(at(Site(registries=MIRROR)), DELETED)
    assert image.cuda is not None
    assert image.cuda.route == "repository"


def test_a_mirror_of_nvidias_own_images_does() -> None:
    registries = {**MIRROR, "docker.io/nvidia": "site.example/nvidia"}
    image = one(at(Site(registries=registries)), DELETED)
    assert image.cuda is not None
    assert image.cuda.route == "image"
    assert image.base_image == "site.example/nvidia/cuda-ppc64le:10.1-devel-centos7"
    assert image.runtime_image == "site.example/nvidia/cuda-ppc64le:10.1-runtime-centos7"
    assert "it is pulled from site.example/nvidia (site.yaml: registries)" in image.cuda.notes[0]
    text = compiled(image).dockerfile
    assert text.count("RUN rm -f /etc/yum.repos.d/cuda*.repo ") == 2
    assert text.index("rm -f /etc/yum.repos.d/cuda") < text.index("yum install")
    assert "vault.centos.org" in text


def test_the_longest_part_that_a_site_mirrors_is_told_and_taken() -> None:
    own = {"docker.io/nvidia": "site.example/nvidia", "docker.io/nvidia/cuda": "site.example/cuda"}
    site = Site(registries={**MIRROR, **own})
    assert mirror_of_namespace("docker.io/nvidia/cuda/a:1", site) == "site.example/cuda"
    assert at_mirror("docker.io/nvidia/cuda/a:1", site.registries) == "site.example/cuda/a:1"
    assert at_mirror("docker.io/nvidia/cuda:1", site.registries) == "site.example/nvidia/cuda:1"
    assert mirror_of_namespace("docker.io/nvidiax/cuda:1", site) == ""


def test_the_order_of_routes_is_the_sites() -> None:
    site = Site(cuda_routes=("repository", "image", "distribution"))
    image = one(at(site), "cuda-alone-1.0-ubi8-cuda12.4-ppc64le")
    assert image.cuda is not None
    assert image.cuda.route == "repository"
    assert image.base_image == "registry.access.redhat.com/ubi8/ubi:8.10"
    text = compiled(image).dockerfile
    url = "https://developer.download.nvidia.com/compute/cuda/repos/rhel8/ppc64le"
    assert text.index(f"rpm --import {url}/D42D0685.pub") < text.index(f"{url}/cuda-rhel8.repo")
    assert "cuda-libraries-devel-12-4" in text
    assert "libnccl-devel-2.21.5-1+cuda12.4" in text


def test_debian_13_has_a_key_of_its_own() -> None:
    project = with_axes(golden_project(), cuda=("13.2",))
    base = project.bases["debian13"]
    cuda = dataclasses.replace(base.cuda, repository="debian13")
    bases = {**project.bases, "debian13": dataclasses.replace(base, cuda=cuda)}
    image = one(
        dataclasses.replace(project, bases=bases), "cuda-alone-1.0-debian13-cuda13.2-x86_64"
    )
    assert "/debian13/x86_64/8793F200.pub" in compiled(image).dockerfile


@pytest.mark.parametrize(
    ("mpi", "reason"),
    [
        ("intelmpi2021.13", "world: Intel MPI exists only for x86_64, not ppc64le"),
        ("craympich8.1", "world: Cray MPICH exists only for x86_64, aarch64, not ppc64le"),
    ],
)
def test_hosts_mpis_are_for_their_architectures_alone(mpi: str, reason: str) -> None:
    [out] = planned(golden_project(), f"hpc-base-1.0-rockylinux9-{mpi}-ppc64le").left_out
    assert [str(text) for text in out.reasons] == [reason]


def test_cray_mpich_is_bound_into_what_is_made_with_mpich() -> None:
    image = one(golden_project(), "hpc-base-1.0-rockylinux9-craympich8.1-aarch64")
    mpi = contract_of(image).mpi
    assert mpi is not None
    assert (mpi.route, mpi.library, mpi.abi) == ("host", "libmpi.so.12", "mpich")
    debians = contract_of(one(golden_project(), "hpc-base-1.0-debian12-mpich4.0-ppc64le")).mpi
    assert debians is not None
    assert debians.library == "libmpich.so.12"  # which Cray's programs do not find
    _, final = compiled(image).dockerfile.split(" AS runtime")
    assert "        mpich" not in final.partition("LABEL")[0]  # no package of it


def test_what_a_recipe_insists_on_must_be_there() -> None:
    wants = recipe("wants", development=(block("cuda", nccl=True),))
    project = golden_project()
    project = dataclasses.replace(project, recipes={**project.recipes, "wants": wants})
    [out] = planned(project, "wants-1.0-ubi7-cuda10.1-ppc64le").left_out
    assert str(out.reasons[0]) == (
        "base image: CUDA 10.1 by the route repository on ubi7 for ppc64le has no nccl, but "
        "recipes/core.yaml:5 needs it"
    )


def test_what_ppc64le_has_of_10_1() -> None:
    selection = Selection(patterns={"arch": ("ppc64le",), "cuda": ("10.1",)})
    plan = make_plan(golden_project(), selection, compiler=spec.COMPILER)
    assert {image.cell.base for image in plan.images} == {"ubuntu18.04", "ubi7", "centos7"}
