"""The batch scripts under a real Slurm of two nodes: the image's own check finds all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import PROJECT

from builder.engines import Tools

IMAGE = "hpc-base-1.0-debian13-openmpi5.0-x86_64"
slurm = pytest.importorskip("slurm", reason="there is no Slurm for tests here")


@pytest.fixture(scope="module", name="cluster")
def _cluster() -> Iterator[dict[str, str]]:
    """The environment in which a Slurm of two nodes is found."""
    if why := slurm.why_not():
        pytest.skip(why)
    with slurm.two_nodes() as environment:
        yield environment


@pytest.fixture(name="scripts")
def _scripts(shared_folder: Path) -> Path:
    """The folder of the image's scripts, which look for it beside them."""
    command = [sys.executable, "-m", "builder", "site-files", "--registry=quay.io/site"]
    where = [f"--output={shared_folder}", f"--folder={shared_folder}", f"--image={IMAGE}"]
    subprocess.run([*command, *where], check=True, cwd=PROJECT, capture_output=True)
    return shared_folder / IMAGE


def sbatch(
    script: Path, *words: str, tools: Tools, cluster: dict[str, str], image: Path, **more: str
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
    environment = {**os.environ, **tools.environment, **cluster, "IMAGE": str(image), **more}
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
    cluster: dict[str, str],
) -> None:
    sif = shared_folder / f"{IMAGE}.sif"
    sif.symlink_to(hpc_base["x86_64"] / "image.sif")
    script = scripts / "slurm-apptainer.sh"
    code, printed = sbatch(script, tools=tools, cluster=cluster, image=sif)
    assert code == 0, printed
    assert "4 ranks on 2 hosts" in printed


def test_charliecloud(scripts: Path, unpacked: Path, tools: Tools, cluster: dict[str, str]) -> None:
    script = scripts / "slurm-charliecloud.sh"
    code, printed = sbatch(script, tools=tools, cluster=cluster, image=unpacked)
    assert code == 0, printed
    assert "4 ranks on 2 hosts" in printed
    code, printed = sbatch(script, "false", tools=tools, cluster=cluster, image=unpacked)
    assert code == 1, "what fails in the image fails the job"


def test_charliecloud_by_the_hosts_mpiexec(
    scripts: Path, unpacked: Path, tools: Tools, cluster: dict[str, str]
) -> None:
    script = scripts / "mpiexec-charliecloud.sh"
    code, printed = sbatch(script, tools=tools, cluster=cluster, image=unpacked)
    assert code == 0, printed
    assert "4 ranks on 2 hosts" in printed


@pytest.mark.parametrize("kind", ["apptainer", "charliecloud"])
def test_an_image_that_is_not_there_is_named(
    kind: str, scripts: Path, tools: Tools, cluster: dict[str, str]
) -> None:
    absent = scripts.parent / "absent"
    script = scripts / f"slurm-{kind}.sh"
    code, printed = sbatch(script, tools=tools, cluster=cluster, image=absent)
    assert code == 1
    assert f"no image {absent} on " in printed
    assert "build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0" in printed
