"""Routes to CUDA and to MPI: which is taken, in which words it is refused, and what it brings.

The facts, the bases and the recipes are the shipped ones, with `golden_cells.RECIPES`.
UPDATE_GOLDEN=1 writes the explanations in tests/golden/explain anew: read the difference.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

import pytest
from golden_cells import CELLS, REFUSED, golden_images, golden_project
from samples import GOLDEN, block, recipe, shipped_project

from builder.cli.show import explanation
from builder.compile import spec
from builder.model import LeftOut, Plan, PlannedImage, Project, Selection, Site
from builder.model.contract import contract_of
from builder.model.inputs import at_mirror
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


def reasons(identifier: str) -> list[str]:
    return [str(reason) for reason in left_out()[identifier].reasons]


def compiled(image: PlannedImage) -> Any:
    return spec.compile_spec(image, run_checks="#!/bin/sh\n")


@pytest.mark.parametrize("identifier", [*CELLS, *REFUSED])
def test_explanation_is_in_these_words(identifier: str) -> None:
    if identifier in REFUSED:
        plan = Plan(images=(), left_out=(left_out()[identifier],))
    else:
        plan = Plan(images=(golden_images()[identifier],), left_out=())
    found = f"{explanation(plan, host='x86_64')}\n"
    golden = FOLDER / f"{identifier}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        FOLDER.mkdir(parents=True, exist_ok=True)
        golden.write_text(found)
    assert found == golden.read_text()


def test_without_the_handler_of_set_up_nothing_is_lent() -> None:
    images = [one for one in golden_images().values() if one.base.name == "debian13"]
    for image in images:
        plan = Plan(images=(image,), left_out=())
        found = explanation(plan, host="x86_64", opened=lambda _arch: False)
        told = "native tools: none, the kernel's handler is not that of set-up" in found
        assert told is (image.cell.arch != "x86_64"), found


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
    assert routes == {"image", "repository", "distribution", "sdk"}


def test_no_toolkit_for_the_architecture_since_12_5() -> None:
    first = reasons("cuda-alone-1.0-ubi8-cuda12.5-ppc64le")[0]
    assert first.startswith(
        "world: CUDA 12.5 has no toolkit for ppc64le: 9.2 to 12.4 have one (https://"
    )


def test_volta_ended_with_cuda_12_9() -> None:
    [text] = reasons("volta-1.0-ubuntu24.04-cuda13.0-x86_64")
    assert text.startswith(
        "world: CUDA 13.0 does not compile for sm_70, which recipes/core.yaml:5 "
    )
    assert "; CUDA 9.2 to 12.9 do (https://" in text


def test_no_packages_of_10_1_for_ppc64le_on_ubi8() -> None:
    [text] = reasons("cuda-alone-1.0-ubi8-cuda10.1-ppc64le")
    assert text == (
        "base image: ubi8 has no way to CUDA 10.1 for ppc64le: NVIDIA made images of it for "
        "ppc64le on centos7, ubi7, ubuntu18.04 only; NVIDIA has packages of it for ppc64le on "
        "rhel7, ubuntu1804 only; the distribution itself packages no CUDA "
        "(base-images/ubi8.yaml: cuda)"
    )


@pytest.mark.parametrize("base", ["ubuntu18.04", "ubi7", "centos7"])
def test_10_1_for_ppc64le_is_on_three_bases(base: str) -> None:
    image = golden_images()[f"cuda-alone-1.0-{base}-cuda10.1-ppc64le"]
    assert image.cuda is not None
    assert (image.cuda.update, image.cuda.route) == ("10.1.243", "repository")


def test_an_exclude_is_the_maintainers() -> None:
    last = reasons("python-mpi-1.0-debian13-mpich4.2-x86_64")[-1]
    assert last.startswith(
        "maintainer: Debian builds python3-mpi4py against Open MPI only (matrix."
    )


def test_a_cell_that_several_layers_refuse_shows_all() -> None:
    found = reasons("cuda-base-1.0-ubi8-cuda10.1-openmpi4.1-ppc64le")
    assert [text.partition(":")[0] for text in found] == ["base image", "base image"]
    found = reasons("cuda-alone-1.0-debian13-cuda11.8-x86_64")
    assert found[0].startswith("world: nvcc of CUDA 11.8 takes gcc up to 11, and debian13 packages")
    assert found[1].startswith("base image: debian13 has no way to CUDA 11.8 for x86_64: ")


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
    assert "cuda: nvcc compiles with gcc 12; the base's own is 13" in image.decided
    text = compiled(image).dockerfile
    assert "        g++-12 \\\n" in text
    assert 'NVCC_PREPEND_FLAGS="-ccbin g++-12"' in text


def test_a_release_in_no_table_is_refused() -> None:
    project = with_axes(golden_project(), cuda=("12.7",))
    [out] = planned(project, "cuda-alone-1.0-ubi8-cuda12.7-x86_64").left_out
    assert str(out.reasons[0]).startswith("world: CUDA 12.7 is in no table of releases")


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


def test_deleted_tags_are_no_route_and_explain_says_so() -> None:
    image = golden_images()[DELETED]
    assert image.cuda is not None
    [note] = image.cuda.notes
    assert note.startswith("NVIDIA deleted docker.io/nvidia/cuda-ppc64le:10.1-devel-centos7 from ")
    assert f"cuda: {note}" in image.decided


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
    assert "it comes from site.example/nvidia (site.yaml: registries)" in image.cuda.notes[0]
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


def test_the_key_comes_before_the_repository_on_ubuntu() -> None:
    text = compiled(golden_images()["cuda-alone-1.0-ubuntu18.04-cuda10.1-ppc64le"]).dockerfile
    url = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu1804/ppc64el"
    first = text.index(f"{url}/3bf863cc.pub")
    assert first < text.index(f"deb [signed-by=/usr/share/keyrings/3bf863cc.gpg] {url} /")
    assert "libcublas10=10.2.1.243-1" in text
    assert "ln -sfn cuda-10.1 /usr/local/cuda" in text


def test_debian_13_has_a_key_of_its_own() -> None:
    project = with_axes(golden_project(), cuda=("13.2",))
    base = project.bases["debian13"]
    cuda = dataclasses.replace(base.cuda, repository="debian13")
    bases = {**project.bases, "debian13": dataclasses.replace(base, cuda=cuda)}
    image = one(
        dataclasses.replace(project, bases=bases), "cuda-alone-1.0-debian13-cuda13.2-x86_64"
    )
    assert "/debian13/x86_64/8793F200.pub" in compiled(image).dockerfile


def test_intel_mpi_is_for_x86_64_alone() -> None:
    [out] = planned(golden_project(), "hpc-base-1.0-rockylinux9-intelmpi2021.13-ppc64le").left_out
    assert [str(one) for one in out.reasons] == ["world: Intel MPI is for x86_64 only, not ppc64le"]


def test_cray_mpich_is_bound_into_what_is_made_with_mpich() -> None:
    image = one(golden_project(), "hpc-base-1.0-rockylinux9-craympich8.1-aarch64")
    mpi = contract_of(image).mpi
    assert mpi is not None
    assert (mpi.route, mpi.library, mpi.abi) == ("host", "libmpi.so.12", "mpich")
    _, final = compiled(image).dockerfile.split(" AS runtime")
    assert "        mpich" not in final.partition("LABEL")[0]  # no package of it
    [left] = planned(golden_project(), "hpc-base-1.0-rockylinux9-craympich8.1-ppc64le").left_out
    [reason] = left.reasons
    assert str(reason) == "world: Cray MPICH is for x86_64, aarch64 only, not ppc64le"


def test_what_a_recipe_insists_on_must_be_there() -> None:
    wants = recipe("wants", development=(block("cuda", nccl=True),))
    project = golden_project()
    project = dataclasses.replace(project, recipes={**project.recipes, "wants": wants})
    [out] = planned(project, "wants-1.0-ubi7-cuda10.1-ppc64le").left_out
    assert str(out.reasons[0]) == (
        "base image: CUDA 10.1 by the route repository on ubi7 for ppc64le has no nccl, and "
        "recipes/core.yaml:5 wants it"
    )


def test_the_default_selection_is_the_two_images_of_the_readme() -> None:
    plan = make_plan(golden_project(), Selection(), compiler=spec.COMPILER)
    assert [image.identifier for image in plan.images] == [
        "hpc-base-1.0-debian13-openmpi5.0-x86_64",
        "hpc-base-1.0-debian13-openmpi5.0-ppc64le",
    ]
    assert plan.left_out == ()


def test_what_ppc64le_has_of_10_1() -> None:
    selection = Selection(patterns={"arch": ("ppc64le",), "cuda": ("10.1",)})
    plan = make_plan(golden_project(), selection, compiler=spec.COMPILER)
    assert {image.cell.base for image in plan.images} == {"ubuntu18.04", "ubi7", "centos7"}
