"""ci/setup on a machine that is set up: nothing is installed again, and it does not take long."""

from __future__ import annotations

import time

import pytest
from harness import PROJECT, passed, run_program

from builder.system.home import Home


@pytest.mark.engines
def test_a_second_set_up_installs_nothing() -> None:
    begun = time.monotonic()
    done = passed(run_program(PROJECT / "ci/setup", "images"))
    took = time.monotonic() - begun
    assert "nothing to install" in done.stderr
    assert took < 5  # well under 1 s on an idle machine


@pytest.mark.engines
def test_what_was_fetched_is_recorded_with_its_checksum() -> None:
    apptainer = Home.of_environment().tools / "apptainer"
    if not apptainer.exists():
        pytest.skip("Apptainer is the system's own here")
    lines = (Home.of_environment().path / "tools/manifest.txt").read_text().splitlines()
    recorded = {line.split()[0]: line.split()[1:] for line in lines}
    assert {"apptainer", "libc6", "libseccomp2", "libsqlite3-0"} <= recorded.keys()
    assert all(checksum.startswith("sha256:") for _version, checksum in recorded.values())
