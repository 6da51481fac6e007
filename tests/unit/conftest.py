"""All unit tests at once run in as many processes as there are processors; none sees this host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
os.environ["BUILD_IMAGES_SHARED"] = ""  # what this machine's users share is no matter of a test


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Ask pytest-xdist for processes where the whole folder is run and `-n` says nothing else."""
    chosen = getattr(config.option, "numprocesses", 0)  # 0: there is no xdist
    folders = [Path(argument).resolve() for argument in config.args]
    is_worker = hasattr(config, "workerinput")
    if chosen is None and folders == [HERE] and not (is_worker or config.option.usepdb):
        config.option.numprocesses = len(os.sched_getaffinity(0))
