"""Faults at random while workers of a Dask scheduler make images.

`python bench/worker_faults.py` runs many rounds; here, one with four workers in `make test`, which
a fixed seed chooses, and 20 with eight in `make test-long`, others each time.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from harness import LONG, need
from worker_faults import campaign, print_result

from builder.build.engines import Tools
from builder.system.files import remove_tree

pytestmark = [pytest.mark.engines, pytest.mark.campaign]
ROUNDS, WORKERS = (20, 8) if LONG else (1, 4)


def test_every_image_is_made_in_spite_of_faults_and_nothing_is_left(tools: Tools) -> None:
    del tools
    need("docker-registry")
    if os.geteuid():
        pytest.skip("machines with names and disks of their own need root")
    seed = random.randrange(1 << 32) if LONG else 1
    folder = Path(tempfile.mkdtemp(prefix="worker-faults-", dir="/var/tmp"))
    folder.chmod(0o755)  # the ordinary user works in homes
    try:
        result = campaign(folder, rounds=ROUNDS, seed=seed, workers=WORKERS)
    finally:
        remove_tree(folder)
    print_result(result, seed)
    assert result.rounds == ROUNDS
    assert not result.is_wrong
