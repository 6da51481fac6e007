"""The cells that golden files hold: all bases, architectures, CUDA and MPI families."""

from __future__ import annotations

import dataclasses
import functools

from samples import block, recipe, shipped_project

from builder.compile import spec
from builder.model import PlannedImage, Project, Selection
from builder.plan import make_plan

# Of the shipped recipes.
SHIPPED = (
    "hpc-base-1.0-debian12-openmpi4.1-x86_64",
    "hpc-base-1.0-debian12-openmpi4.1-ppc64le",
    "hpc-base-1.0-debian12-mpich4.0-ppc64le",
    "hpc-base-1.0-debian13-openmpi5.0-x86_64",
    "hpc-base-1.0-debian13-openmpi5.0-ppc64le",
    "hpc-base-1.0-debian13-openmpi5.0-aarch64",
    "hpc-base-1.0-debian13-mpich4.2-x86_64",
    "hpc-base-1.0-rockylinux9-intelmpi2021.13-x86_64",
    "hpc-base-1.0-ubuntu20.04-openmpi4.0-ppc64le",
    "hpc-base-1.0-ubuntu22.04-openmpi4.1-aarch64",
    "hpc-base-1.0-ubuntu24.04-mpich4.2-ppc64le",
    "hpc-base-1.0-rockylinux8-openmpi4.1-x86_64",
    "hpc-base-1.0-rockylinux9-openmpi4.1-ppc64le",
    "hpc-base-1.0-rockylinux9-mpich4.1-aarch64",
    "hpc-base-1.0-centos7-openmpi1.10-ppc64le",
    "python-mpi-1.0-debian12-openmpi4.1-ppc64le",
    "python-mpi-1.0-debian13-openmpi5.0-x86_64",
    "python-mpi-1.0-debian13-mpich4.2-aarch64",
    "python-mpi-1.0-rockylinux9-intelmpi2021.13-x86_64",
    "cuda-base-1.0-debian12-cuda11.8-openmpi4.1-x86_64",
    "cuda-base-1.0-debian12-cuda12.9-openmpi4.1-x86_64",
    "cuda-base-1.0-debian13-cuda12.4-openmpi5.0-ppc64le",
    "cuda-base-1.0-debian13-cuda13.5-openmpi5.0-aarch64",
    "tensorflow-release-1.0-debian13-cuda12.9-openmpi5.0-x86_64",
    "cuda-base-1.0-ubuntu18.04-cuda10.1-openmpi2.1-ppc64le",
    "cuda-base-1.0-centos7-cuda10.1-openmpi1.10-ppc64le",
    "cuda-base-1.0-ubuntu22.04-cuda12.4-openmpi4.1-x86_64",
    "cuda-base-1.0-ubuntu24.04-cuda12.9-openmpi4.1-aarch64",
    "cuda-base-1.0-rockylinux8-cuda11.8-openmpi4.1-x86_64",
    "cuda-base-1.0-rockylinux9-cuda13.0-openmpi4.1-x86_64",
    "cuda-base-1.0-almalinux8-cuda12.4-openmpi4.1-ppc64le",
    "mpi-release-1.0-debian13-cuda12.4-openmpi4.1.8-ppc64le",
    "mpi-release-1.0-almalinux8-mvapich2-2.3.7-ppc64le",
    "hpc-base-1.0-almalinux9-mpich4.1-ppc64le",
    "hpc-base-1.0-rockylinux9-craympich8.1-aarch64",
    "hpc-sdk-1.0-almalinux8-cuda11.8-openmpi4.1-ppc64le",
    "hpc-sdk-1.0-ubuntu22.04-cuda12.4-openmpi4.1-x86_64",
    "hpc-sdk-1.0-ubuntu22.04-cuda13.0-openmpi4.1-aarch64",
)
# Of recipes that have a toolkit and nothing else: UBI packages no MPI for the shipped ones.
ALONE = (
    "cuda-alone-1.0-ubuntu18.04-cuda10.1-ppc64le",
    "cuda-alone-1.0-ubuntu18.04-cuda10.2-x86_64",
    "cuda-alone-1.0-ubuntu20.04-cuda11.8-aarch64",
    "cuda-alone-1.0-ubi7-cuda10.1-ppc64le",
    "cuda-alone-1.0-ubi7-cuda10.2-x86_64",
    "cuda-alone-1.0-ubi8-cuda10.1-x86_64",
    "cuda-alone-1.0-ubi8-cuda12.4-ppc64le",
    "cuda-alone-1.0-ubi9-cuda12.9-aarch64",
    "cuda-alone-1.0-centos7-cuda10.1-ppc64le",
    "mpi-alone-1.0-ubi7-openmpi4.1.8-ppc64le",
    "mpi-alone-1.0-ubi8-mvapich2-2.3.7-ppc64le",
    "mpi-alone-1.0-ubi9-openmpi4.1.8-aarch64",
)
CELLS = SHIPPED + ALONE

# Cells that cannot be, each with reasons of its own.
REFUSED = (
    "cuda-alone-1.0-ubi8-cuda10.1-ppc64le",
    "cuda-alone-1.0-ubi8-cuda12.5-ppc64le",
    "cuda-alone-1.0-rockylinux8-cuda12.4-ppc64le",
    "cuda-alone-1.0-debian13-cuda11.8-x86_64",
    "cuda-alone-1.0-debian13-cuda12.9-x86_64",
    "volta-1.0-ubuntu24.04-cuda13.0-x86_64",
    "volta-1.0-debian13-cuda12.5-openmpi4.1-ppc64le",
    "cuda-base-1.0-ubi8-cuda10.1-openmpi4.1-ppc64le",
    "python-mpi-1.0-debian13-mpich4.2-ppc64le",
)

_GNU = block("gnu", cc=True, cxx=True, fortran=True)
RECIPES = (
    recipe("cuda-alone", development=(_GNU, block("cuda", cudnn="optional", nccl="optional"))),
    recipe(
        "mpi-alone",
        development=(
            _GNU,
            block("mpi", routes=["package", "source", "host"], source={"cuda": False}),
        ),
    ),
    recipe("volta", development=(block("cuda", capabilities=["70"]),)),
)


@functools.cache
def golden_project() -> Project:
    """The shipped project with `RECIPES`."""
    shipped = shipped_project()
    more = {one.name: one for one in RECIPES}
    return dataclasses.replace(shipped, recipes={**shipped.recipes, **more})


@functools.cache
def golden_images() -> dict[str, PlannedImage]:
    """The planned images of `CELLS`, by identifier."""
    made = make_plan(golden_project(), Selection(images=CELLS), compiler=spec.COMPILER)
    return {image.identifier: image for image in made.images}
