"""The batch scripts under a real Slurm of two nodes: the image's own check finds all ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm
from harness import build_images, folder_of_the_user, passed

from builder.build.engines import Tools

IMAGE = "hpc-base-1.0-debian13-openmpi5.0-x86_64"
pytestmark = pytest.mark.engines

# Open MPI 5.0 crashes now and then where a message comes while MPI_Init waits in a fence that other
# nodes have left: https://github.com/open-mpi/ompi/issues/12495 (docs/sites.md tells users).
CRASH_IN_INIT = re.compile(r"mca_pml_ob1_recv_frag_callback_match.*ompi_mpi_init", re.DOTALL)
MOST_CRASHES = 2


@pytest.fixture(name="scripts", scope="module")
def _scripts(tools: Tools) -> Iterator[Path]:
    """The folder of the image's scripts, which look for it beside them."""
    with folder_of_the_user(tools) as folder:
        words = ("--registry=quay.io/site", "--output", folder, "--folder", folder)
        passed(build_images("site-files", *words, f"--image={IMAGE}"))
        yield folder / IMAGE


Submit = Callable[..., tuple[int, str]]


@pytest.fixture(name="sbatch")
def submitting(scripts: Path, tools: Tools, two_nodes: dict[str, str]) -> Submit:
    """Submits a script, as often as it ends in Open MPI's known crash: exit code and output."""

    user = tools.ordinary_user or os.environ.get("USER", "user")

    def sbatch(name: str, image: Path, *words: str) -> tuple[int, str]:
        env = {**tools.environment, **two_nodes, "IMAGE": str(image), "USER": user}
        for _ in range(MOST_CRASHES):
            code, printed = slurm.submit(scripts / name, *words, user=user, env=env)
            if not (code and CRASH_IN_INIT.search(printed)):
                return code, printed
        return slurm.submit(scripts / name, *words, user=user, env=env)

    return sbatch


def test_apptainer(shared_folder: Path, hpc_base: dict[str, Path], sbatch: Submit) -> None:
    sif = shared_folder / f"{IMAGE}.sif"
    sif.symlink_to(hpc_base["x86_64"] / "image.sif")
    code, printed = sbatch("slurm-apptainer.sh", sif)
    assert code == 0, printed
    assert "4 ranks on 2 hosts" in printed


@pytest.mark.parametrize("script", ["slurm-charliecloud.sh", "mpiexec-charliecloud.sh"])
def test_charliecloud(script: str, unpacked: Path, sbatch: Submit) -> None:
    """Started by srun, or by the host's mpiexec."""
    code, printed = sbatch(script, unpacked)
    assert code == 0, printed
    assert "4 ranks on 2 hosts" in printed


def test_what_fails_in_the_image_fails_the_job(unpacked: Path, sbatch: Submit) -> None:
    assert sbatch("slurm-charliecloud.sh", unpacked, "false")[0] == 1


@pytest.mark.parametrize("kind", ["apptainer", "charliecloud"])
def test_an_image_that_is_not_there_is_named(
    kind: str, shared_folder: Path, sbatch: Submit
) -> None:
    absent = shared_folder / "absent"
    code, printed = sbatch(f"slurm-{kind}.sh", absent)
    assert code == 1
    assert f"no image {absent} on " in printed
    assert "build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0" in printed
