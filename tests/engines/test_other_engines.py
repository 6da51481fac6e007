"""The same spec through other engines: Docker, `apptainer build`, `ch-image build`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import (
    LONG,
    build_images,
    home_of_its_own,
    manifest_of,
    need,
    passed,
)
from projects import copy_of_project
from small_base import LEAN, add_small_base, store_small_base

from builder.artifacts.oci import read_layout
from builder.build.engines import Tools, apptainer

pytestmark = [pytest.mark.engines, pytest.mark.campaign]

# What engines differ in: stages, copied files, an environment, checks. In `make test-long`
# three engines install a compiler and an MPI, too, and compile a check.
IMAGE = "lean-1.0-debian13-openmpi5.0-x86_64" if LONG else LEAN
WITH_MPI = """\
recipe: lean
version: "1.0"
about: An MPI, and a check that is compiled with it
development:
  - gnu: {cc: true, cxx: false, fortran: false}
  - mpi: {routes: [package]}
environment:
  OMPI_MCA_reachable: weighted
  OMPI_MCA_btl_sm_single_copy_mechanism: none
checks: [architecture, mpi]
"""
CHECKS = ("architecture", "mpi") if LONG else ("numbers",)


@pytest.fixture(scope="module")
def lean(
    docker_host: str, tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The folder of a lean image that Docker has built and whose checks have run."""
    site = copy_of_project(tmp_path_factory.mktemp("lean"))
    env = {"DOCKER_HOST": docker_host}
    words: list[str | Path] = ["--project", site, "--engine", "docker", "--image", IMAGE]
    with home_of_its_own(tools) as home:
        if LONG:
            (site / "recipes/lean.yaml").write_text(WITH_MPI)
        else:
            add_small_base(site)
            store_small_base(site, home)
            env["BUILD_IMAGES_HOME"] = str(home)
        passed(build_images(*words, "--format", "oci", env=env))
        yield site / "out" / IMAGE


def test_docker_builds_an_image_that_is_proven(lean: Path) -> None:
    manifest = manifest_of(lean)
    assert manifest["engine"] == "docker"
    assert manifest["outcome"] == "verified"
    assert set(manifest["artifacts"]) == {"oci"}


FOREIGN = """\
recipe: foreign
version: "1.0"
about: An image of another architecture
development:
  - shell: {commands: ["uname -m | grep -x ppc64le"]}
"""


def test_docker_builds_for_another_architecture(docker_host: str, site: Path) -> None:
    (site / "recipes/foreign.yaml").write_text(FOREIGN)
    cell = ("--recipe=foreign", "--arch=ppc64le", "--base=debian13", "--mpi=none", "--cuda=none")
    words = ("--project", site, "--engine", "docker", "--format", "oci", "--no-verify")
    passed(build_images(*words, *cell, env={"DOCKER_HOST": docker_host}))
    [folder] = (site / "out").glob("foreign-*")
    assert read_layout(folder / "image.oci").architecture == "ppc64le"


def test_apptainer_builds_the_definition(lean: Path, tools: Tools, shared_folder: Path) -> None:
    copy_spec(lean, shared_folder)
    sif = shared_folder / "from-definition.sif"
    apptainer.build(
        shared_folder / "Singularity.def",
        sif,
        arch="x86_64",
        tools=tools,
        log=shared_folder / "apptainer.log",
        options=("--fakeroot",),
    )
    done = tools.processes.capture(
        [tools.program("apptainer"), "test", "--cleanenv", "--no-home", str(sif)],
        env={**tools.environment, **apptainer.environment(shared_folder)},
        user=tools.ordinary_user,
        cwd=shared_folder,
        timeout_s=300,
    )
    for check in CHECKS:
        assert f"{check}: passed" in done.stdout


def test_charliecloud_builds_the_dockerfile(lean: Path, tools: Tools, shared_folder: Path) -> None:
    need("ch-image", "ch-convert")
    copy_spec(lean, shared_folder)
    base = base_name(shared_folder / "Dockerfile")
    rootfs = shared_folder / "base"
    unpack_base(shared_folder, rootfs, tools)
    env = {
        "CH_IMAGE_STORAGE": str(shared_folder / "storage"),
        "USER": tools.ordinary_user or os.environ.get("USER", ""),
        # ch-image takes the python3 that it finds first, and needs the system's own
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    }

    def as_user(*argv: str | Path) -> str:
        done = tools.processes.capture(
            list(argv), env=env, user=tools.ordinary_user, cwd=shared_folder, timeout_s=1500
        )
        return done.stdout

    # Without ch-image's cache, which wants git to know the user's name.
    as_user("ch-image", "import", "--no-cache", rootfs, base)
    as_user("ch-image", "build", "--no-cache", "--force", "-t", "lean", "-f", "Dockerfile", ".")
    as_user("ch-convert", "-i", "ch-image", "-o", "dir", "lean", shared_folder / "image")
    found = as_user(
        "ch-run",
        "--set-env",  # as the image says: without it, Open MPI complains of transports
        "--set-env=HOME=/tmp",
        shared_folder / "image",
        "--",
        "/opt/build-images/run-checks",
    )
    for check in CHECKS:
        assert f"{check}: passed" in found


def copy_spec(folder: Path, target: Path) -> None:
    """The spec's folder, with the base archive beside it, where the ordinary user can read it."""
    shutil.copytree(folder / "files", target / "files")
    for name in ("Dockerfile", "Singularity.def"):
        shutil.copy(folder / name, target)
    for link in folder.glob("*.oci.tar"):
        shutil.copy(link, target / link.name)


def base_name(dockerfile: Path) -> str:
    line = next(line for line in dockerfile.read_text().splitlines() if line.startswith("FROM "))
    return line.split()[1]


def unpack_base(folder: Path, target: Path, tools: Tools) -> None:
    archive = next(folder.glob("*.oci.tar"))
    tools.processes.capture(
        ["sh", "-c", f"mkdir {folder}/layout && tar -xf {archive} -C {folder}/layout"],
        user=tools.ordinary_user,
    )
    layers = sorted((folder / "layout/blobs/sha256").iterdir(), key=lambda one: one.stat().st_size)
    target.mkdir()
    if tools.ordinary_user:
        shutil.chown(target, tools.ordinary_user)
    tools.processes.capture(
        ["tar", "-xzf", str(layers[-1]), "-C", str(target)], user=tools.ordinary_user
    )
