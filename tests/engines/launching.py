"""What tests of launchers share: asking for ranks, and what came of them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness import Ended, build_images, manifest_of, missing


def need_open_mpi_4() -> None:
    if absent := missing(["mpirun.openmpi", "mpicc.openmpi"]):
        pytest.skip(f"missing on this machine: {', '.join(absent)} (make setup-test)")
    told = subprocess.run(
        ["mpirun.openmpi", "--version"], capture_output=True, text=True, check=True
    ).stdout
    if " 4.1." not in told:
        pytest.skip(f"the host's Open MPI is not the images' 4.1: {told.splitlines()[0]}")


def launched(folder: Path, check: str) -> dict[str, dict[str, Any]]:
    """The outcomes of one name in the manifest, by format."""
    found = {
        name: [one for one in outcomes if one["check"] == check]
        for name, outcomes in manifest_of(folder)["launched"].items()
    }
    return {name: some[0] for name, some in found.items() if some}


def only(folder: Path, check: str) -> tuple[str, str]:
    """The outcome in Charliecloud, and its reason."""
    found = launched(folder, check)["charliecloud"]
    return found["outcome"], found["reason"]


def verify(
    folder: Path, launcher: str, *words: str, runner: str = "charliecloud", **environment: str
) -> Ended:
    chosen = ("--launcher", launcher, "--runner", runner)
    return build_images("verify", folder, *chosen, *words, env=environment)
