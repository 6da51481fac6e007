"""A site with many workers and many faults, by a virtual clock (bench/scale.py)."""

from __future__ import annotations

import contextlib
import random

import pytest
from scale import FAULTS, SimulatedWorkers, simulate
from scale_cells import make_site

from builder.model.errors import Interrupted


@pytest.mark.parametrize("seed", range(10))
def test_every_image_ends_and_nothing_is_accepted_twice(seed: int) -> None:
    result = simulate(seed, cells=120, workers=40)
    assert result.wrong == []
    assert result.verified + result.failed == 120
    assert result.ratio > 0.999_999


def test_faults_happen() -> None:
    """The campaign meets all that it is for."""
    counts = simulate(2, cells=600, workers=40).counts
    faults = ("lost", "cut off", "preempted", "slow", "result twice", "store refused", "failed")
    assert [fault for fault in faults if not counts[fault]] == []
    assert counts["evidence refused"]
    assert counts["cancelled"]


def test_a_schedule_that_accepts_everything_is_noticed() -> None:
    chance = random.Random(0)
    site = make_site(300, 40, chance)
    workers = SimulatedWorkers(site, FAULTS | {"cut off": 0.1}, chance)
    done = workers.schedule.done
    workers.schedule.done = lambda attempt: done(attempt) or True  # type: ignore[method-assign]
    with contextlib.suppress(Interrupted):  # of an attempt whose result came otherwise
        workers.run()
    wrong = "\n".join(workers.wrong)
    assert "evidence of an attempt that was given up" in wrong
    assert "ended twice" in wrong
