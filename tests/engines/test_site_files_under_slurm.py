"""The batch scripts under a real Slurm of two nodes: the image's own check finds all ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import slurm
from harness import PROJECT

from builder.build.engines import Tools

IMAGE = "hpc-base-1.0-debian13-openmpi5.0-x86_64"
pytestmark = pytest.mark.engines

# Open MPI 5.0 crashes now and then where a message comes while MPI_Init waits in a fence that other
# nodes have left: https://github.com/open-mpi/ompi/issues/12495 (docs/sites.md tells users).
CRASH_IN_INIT = re.compile(r"mca_pml_ob1_recv_frag_callback_match.*ompi_mpi_init", re.DOTALL)
MOST_CRASHES = 2


@pytest.fixture(name="scripts")
def _scripts(shared_folder: Path) -> Path:
    """The folder of the image's scripts, which look for it beside them."""
    command = [sys.executable, "-m", "builder", "site-files", "--registry=quay.io/site"]
    where = [f"--output={shared_folder}", f"--folder={shared_folder}", f"--image={IMAGE}"]
    subprocess.run([*command, *where], check=True, cwd=PROJECT, capture_output=True)
    return shared_folder / IMAGE


def sbatch(
    script: Path, *words: str, tools: Tools, cluster: dict[str, str], image: Path
) -> tuple[int, str]:
    """Submit a script until it does not end in Open MPI's known crash: exit code and output."""
    for _ in range(MOST_CRASHES):
        code, printed = submit(script, *words, tools=tools, cluster=cluster, image=image)
        if not (code and CRASH_IN_INIT.search(printed)):
            return code, printed
    return submit(script, *words, tools=tools, cluster=cluster, image=image)


def submit(
    script: Path, *words: str, tools: Tools, cluster: dict[str, str], image: Path
) -> tuple[int, str]:
    """Submit a script as the ordinary user, and wait: its exit code, and what it printed."""
    folder = script.parent.parent
    options = [
        "--parsable",
        "--ntasks-per-node=2",
        "--time=5",
        f"--output={folder}/printed",
    ]
    as_user = ["runuser", "-u", tools.ordinary_user, "--"] if tools.ordinary_user else []
    environment = {**os.environ, **tools.environment, **cluster, "IMAGE": str(image)}
    submitted = subprocess.run(
        [*as_user, "sbatch", *options, f"--chdir={folder}", str(script), *words],
        env={**environment, "USER": tools.ordinary_user or environment.get("USER", "user")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert submitted.returncode == 0, submitted.stderr
    code = slurm.exit_code(submitted.stdout.strip(), cluster, timeout_s=300)
    return code, (folder / "printed").read_text()


def test_apptainer(
    scripts: Path,
    shared_folder: Path,
    hpc_base: dict[str, Path],
    tools: Tools,
    two_nodes: dict[str, str],
) -> None:
    sif = shared_folder / f"{IMAGE}.sif"
    sif.symlink_to(hpc_base["x86_64"] / "image.sif")
    script = scripts / "slurm-apptainer.sh"
    code, printed = sbatch(script, tools=tools, cluster=two_nodes, image=sif)
    assert code == 0, printed
    assert "4 ranks on 2 hosts" in printed


def test_charliecloud(
    scripts: Path, unpacked: Path, tools: Tools, two_nodes: dict[str, str]
) -> None:
    script = scripts / "slurm-charliecloud.sh"
    code, printed = sbatch(script, tools=tools, cluster=two_nodes, image=unpacked)
    assert code == 0, printed
    assert "4 ranks on 2 hosts" in printed
    code, printed = sbatch(script, "false", tools=tools, cluster=two_nodes, image=unpacked)
    assert code == 1, "what fails in the image fails the job"


def test_charliecloud_by_the_hosts_mpiexec(
    scripts: Path, unpacked: Path, tools: Tools, two_nodes: dict[str, str]
) -> None:
    script = scripts / "mpiexec-charliecloud.sh"
    code, printed = sbatch(script, tools=tools, cluster=two_nodes, image=unpacked)
    assert code == 0, printed
    assert "4 ranks on 2 hosts" in printed


@pytest.mark.parametrize("kind", ["apptainer", "charliecloud"])
def test_an_image_that_is_not_there_is_named(
    kind: str, scripts: Path, tools: Tools, two_nodes: dict[str, str]
) -> None:
    absent = scripts.parent / "absent"
    script = scripts / f"slurm-{kind}.sh"
    code, printed = sbatch(script, tools=tools, cluster=two_nodes, image=absent)
    assert code == 1
    assert f"no image {absent} on " in printed
    assert "build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0" in printed
