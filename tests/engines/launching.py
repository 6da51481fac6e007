"""Asking launchers for ranks, and the outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Ended, build_images, manifest_of, need, run_program

# Ranks that wait spin, and keep the few processors from the rank that they wait for. mpirun knows
# when there are more ranks than processors, and lets those of its own series yield; srun does not.
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}


def need_open_mpi_4() -> None:
    need("mpirun.openmpi", "mpicc.openmpi")
    version = run_program("mpirun.openmpi", "--version").stdout
    if " 4.1." not in version:
        pytest.skip(f"the host's Open MPI is not the images' 4.1: {version.splitlines()[0]}")


def launched(folder: Path, check: str) -> dict[str, dict[str, Any]]:
    """The outcome of one name in the manifest, by format."""
    return {
        name: outcome
        for name, outcomes in manifest_of(folder)["launched"].items()
        for outcome in outcomes
        if outcome["check"] == check
    }


def only(folder: Path, check: str) -> tuple[str, str]:
    """The outcome in Charliecloud, and its reason."""
    outcome = launched(folder, check)["charliecloud"]
    return outcome["outcome"], outcome["reason"]


def verify(
    folder: Path, launcher: str, *words: str, runner: str = "charliecloud", **environment: str
) -> Ended:
    chosen = ("--launcher", launcher, "--runner", runner)
    return build_images("verify", folder, *chosen, *words, env=environment)
