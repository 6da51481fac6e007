"""The host contract of a planned image: what it says, and that it is in the image."""

from __future__ import annotations

import dataclasses
import functools
import json
import os

import jsonschema
import pytest
from golden_cells import golden_images
from samples import GOLDEN, shipped_images, shipped_project

from builder.cli.schema import schema_of
from builder.compile.spec import compile_spec
from builder.model import PlannedImage, Selection
from builder.model.contract import FILE, IN_IMAGE, as_document, as_labels, as_text, contract_of
from builder.plan import make_plan

SATORI = "cuda-base-1.0-ubuntu18.04-cuda10.1-openmpi2.1-ppc64le"
HOST_MPI = "hpc-base-1.0-rockylinux9-intelmpi2021.13-x86_64"
POWER_CODES = ("30", "32", "35", "37", "50", "52", "53", "60", "61", "62", "70", "72", "75")
DEBIAN = "cuda-base-1.0-debian12-cuda11.8-openmpi4.1-x86_64"


def planned(identifier: str) -> PlannedImage:
    return golden_images()[identifier]


@functools.cache
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(schema_of("host-contract"))


def test_cuda_10_1_on_power() -> None:
    assert as_document(contract_of(planned(SATORI))) == {
        "schema": "build-images/host-contract/v1",
        "image": SATORI,
        "architecture": "ppc64le",
        "cpu": {"target": "generic", "baseline": "power8le", "features": ("power8",)},
        "kernel": "3.10.0",
        "glibc": "2.27",
        "cuda": {
            "version": "10.1",
            "update": "10.1.243",
            "driver": "418.39",
            "shipped_driver": "418.87.00",
            "capabilities": POWER_CODES,
            "ptx": "75",
        },
        "mpi": {
            "family": "openmpi",
            "version": "2.1.1",
            "route": "package",
            "library": "libmpi.so.20",
            "abi": "openmpi",
        },
    }


@pytest.mark.parametrize("identifier", [SATORI, DEBIAN, HOST_MPI])
def test_golden(identifier: str) -> None:
    file = GOLDEN / "contract" / f"{identifier}.json"
    text = as_text(contract_of(planned(identifier)))
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.read_text() == text


def test_minor_version_compatibility_and_the_driver_of_the_toolkit() -> None:
    cuda = contract_of(planned(DEBIAN)).cuda
    assert cuda is not None
    assert (cuda.driver, cuda.shipped_driver) == ("450.80.02", "520.61.05")


@pytest.mark.parametrize(
    ("identifier", "library", "pmix", "route", "abi"),
    [
        ("hpc-base-1.0-debian12-openmpi4.1-x86_64", "libmpi.so.40", "4.2", "package", "openmpi"),
        ("hpc-base-1.0-debian13-openmpi5.0-ppc64le", "libmpi.so.40", "5.0", "package", "openmpi"),
        ("hpc-base-1.0-debian12-mpich4.0-ppc64le", "libmpich.so.12", "", "package", "mpich"),
        ("hpc-base-1.0-rockylinux9-mpich4.1-aarch64", "libmpi.so.12", "", "package", "mpich"),
        ("hpc-base-1.0-centos7-openmpi1.10-ppc64le", "libmpi.so.12", "", "package", "openmpi"),
        ("hpc-base-1.0-rockylinux9-intelmpi2021.13-x86_64", "libmpi.so.12", "", "host", "mpich"),
        ("mpi-alone-1.0-ubi7-openmpi4.1.8-ppc64le", "libmpi.so.40", "3.2", "source", "openmpi"),
        ("mpi-alone-1.0-ubi8-mvapich2-2.3.7-ppc64le", "libmpi.so.12", "", "source", "mpich"),
    ],
)
def test_mpi(identifier: str, library: str, pmix: str, route: str, abi: str) -> None:
    mpi = contract_of(planned(identifier)).mpi
    assert mpi is not None
    assert (mpi.library, mpi.pmix, mpi.route, mpi.abi) == (library, pmix, route, abi)


@pytest.mark.parametrize(
    ("identifier", "target", "baseline", "has"),
    [
        ("hpc-base-1.0-debian13-openmpi5.0-x86_64", "generic", "", ""),
        ("hpc-base-1.0-rockylinux9-openmpi4.1-ppc64le", "generic", "power9le", "power9"),
        ("hpc-base-1.0-ubuntu24.04-mpich4.2-ppc64le", "generic", "power9le", "power9"),
        ("cuda-base-1.0-rockylinux9-cuda13.0-openmpi4.1-x86_64", "generic", "x86_64_v2", "ssse3"),
        ("hpc-base-1.0-debian13-openmpi5.0-aarch64", "generic", "", ""),
    ],
)
def test_processor(identifier: str, target: str, baseline: str, has: str) -> None:
    cpu = contract_of(planned(identifier)).cpu
    assert (cpu.target, cpu.baseline) == (target, baseline)
    assert (not has and not cpu.features) or has in cpu.features


def test_a_cpu_target_adds_to_what_the_base_needs() -> None:
    image = planned("hpc-base-1.0-rockylinux9-openmpi4.1-ppc64le")
    for_power10 = dataclasses.replace(image, cell=dataclasses.replace(image.cell, cpu="power10le"))
    cpu = contract_of(for_power10).cpu
    assert (cpu.target, cpu.baseline, cpu.features) == (
        "power10le",
        "power9le",
        ("power10", "power8", "power9"),
    )


def test_an_image_without_toolkits_needs_neither_driver_nor_mpi() -> None:
    image = dataclasses.replace(planned(SATORI), cuda=None, mpi=None, system=None)
    document = as_document(contract_of(image))
    assert not {"cuda", "mpi", "kernel", "glibc"} & {*document}


def test_every_shipped_image_says_what_it_needs() -> None:
    for image in shipped_images():
        contract = contract_of(image)
        assert contract.kernel, image.identifier
        assert contract.glibc, image.identifier
        assert (contract.cuda is None) == (image.cell.cuda == "none")
        assert contract.mpi is None or contract.mpi.library, image.identifier
        assert [*validator().iter_errors(json.loads(as_text(contract)))] == []


def test_it_is_in_the_image_as_a_file_and_as_labels() -> None:
    image = planned(DEBIAN)
    made, contract = compile_spec(image, run_checks=""), contract_of(image)
    assert made.files[FILE] == as_text(contract)
    assert f"COPY {FILE} {IN_IMAGE}" in made.dockerfile
    assert f"{FILE} {IN_IMAGE}" in made.singularity
    for key, value in as_labels(contract).items():
        assert f"{key}={value}" in made.dockerfile.replace('"', "")
        assert f"{key} {value}" in made.singularity


def test_no_recipe_overrides_it() -> None:
    image = planned(DEBIAN)
    last = dataclasses.replace(image.stages[-1], labels={"build-images.host.kernel": "2.4"})
    made = compile_spec(
        dataclasses.replace(image, stages=(*image.stages[:-1], last)), run_checks=""
    )
    assert "build-images.host.kernel=3.2.0" in made.dockerfile


def test_what_a_host_must_bring_is_part_of_the_content_key() -> None:
    """Else an image would be taken for unchanged whose contract is another."""
    project = shipped_project()
    other = tuple(
        dataclasses.replace(one, kernel={"x86_64": "9.9"}) for one in project.facts.systems
    )
    changed = dataclasses.replace(project, facts=dataclasses.replace(project.facts, systems=other))
    selection = Selection(images=("hpc-base-1.0-debian13-openmpi5.0-x86_64",))
    keys = {
        make_plan(one, selection, compiler="hpccm 1").images[0].content_key
        for one in (project, changed)
    }
    assert len(keys) == 2
