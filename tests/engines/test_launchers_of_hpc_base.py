"""Launchers and the MPI of the host with `hpc-base`, whose Open MPI is of another series."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import LONG, build_images, copy_of, passed
from launching import YIELD, launched, need_open_mpi_4, verify

from builder.build.engines import Tools

pytestmark = pytest.mark.engines


@pytest.fixture
def own_image(hpc_base: dict[str, Path], tools: Tools) -> Iterator[Path]:
    """The x86_64 image, for a test to verify: others read it meanwhile, or publish it."""
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="own-") as name:
        Path(name).chmod(0o755)
        yield copy_of(hpc_base["x86_64"], Path(name) / "image")


@pytest.mark.campaign
def test_the_hosts_library_is_loaded_in_the_place_of_the_images(own_image: Path) -> None:
    """The image has Open MPI 5.0, the host 4.1: the version tells as much as the file does."""
    need_open_mpi_4()
    runners = [] if LONG else ["--runner", "apptainer"]
    words = ("--launcher=mpirun", "--bind-mpi=auto", *runners)
    passed(build_images("verify", own_image, *words, env=YIELD))
    found = launched(own_image, "mpi-bind-mpirun")
    assert sorted(found) == (["charliecloud", "sif"] if LONG else ["sif"])
    for name, one in found.items():
        assert one["outcome"] == "passed"
        assert one["data"]["library"].startswith("Open MPI v4.1.")
        assert one["data"]["library_file"].startswith("/host-mpi/mpi/libmpi.so.40.")
        assert f"the host's {one['data']['host_library']} is loaded" in one["reason"]
        own = launched(own_image, "mpi-hybrid-mpirun")[name]["data"]
        assert own["library"].startswith("Open MPI v5.0.")
        assert not own["library_file"].startswith("/host-mpi")


def test_a_launcher_that_is_not_told_of_mpi_starts_singletons(
    own_image: Path, two_nodes: dict[str, str]
) -> None:
    """`srun --mpi=none`, and Open MPI 5.0, which then takes itself to be alone."""
    option = "--launcher-option=--mpi=none"
    done = verify(own_image, "srun", option, runner="apptainer", **two_nodes)
    assert done.status == 1
    outcome = launched(own_image, "mpi-hybrid-srun")["sif"]
    assert outcome["outcome"] == "failed"
    assert "MPI started singletons: this process is rank 0 of 1" in outcome["reason"]
