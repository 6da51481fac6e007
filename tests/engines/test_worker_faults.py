"""Faults at random while workers of a Dask scheduler make images.

`python bench/worker_faults.py` runs many rounds; here, two with four workers in `make test`,
where a worker and the run are killed, and 30 with eight in `make test-long`, others each time.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from harness import LONG, need
from worker_faults import FAULTS, Campaign, campaign, kinds_of_round, print_result

from builder.build.engines import Tools
from builder.system.files import remove_tree

pytestmark = [pytest.mark.engines, pytest.mark.campaign]
ROUNDS, WORKERS = (30, 8) if LONG else (2, 4)
SEED = 10


def test_every_image_is_made_in_spite_of_faults_and_nothing_is_left(tools: Tools) -> None:
    del tools
    need("docker-registry")
    if os.geteuid():
        pytest.skip("machines with names and disks of their own need root")
    seed = random.randrange(1 << 32) if LONG else SEED
    result = Campaign()
    folder = Path(tempfile.mkdtemp(prefix="worker-faults-", dir="/var/tmp"))
    folder.chmod(0o755)  # the ordinary user works in homes
    try:
        campaign(folder, result, rounds=ROUNDS, seed=seed, workers=WORKERS)
    finally:
        remove_tree(folder)
        print_result(result, seed)
    assert result.rounds == ROUNDS
    assert not result.is_wrong
    planned = sum(len(kinds_of_round(seed, number)) for number in range(1, ROUNDS + 1))
    assert result.faults.total() >= planned / 2, "most faults came too late"


def test_each_kind_of_fault_comes_equally_often() -> None:
    cycle = [kinds_of_round(7, number) for number in range(1, len(FAULTS) + 1)]
    assert {kinds[0] for kinds in cycle} == {*FAULTS}
    assert cycle != [kinds_of_round(8, number) for number in range(1, len(FAULTS) + 1)]
    rounds = [kinds_of_round(7, number) for number in range(1, 201)]
    assert all(sum(kinds.count(kind) for kinds in rounds) >= 26 for kind in FAULTS)
