"""SIGKILL at a step, and the same command again.

`python bench/kills.py` does it at every step; here, at some of each command.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import pytest
from harness import missing
from kill_cases import all_cases
from killing import Case, Commands, kill

pytestmark = pytest.mark.engines
Cases: TypeAlias = "tuple[Commands, dict[str, Case]]"
EVERY = {
    "pull --format oci": 39,
    "pull --format sif": 19,
    "pull --format charliecloud": 29,
    "pull --format directory": 39,
    "publish": 53,
    "publish --from": 48,
    "bundle": 5,
    "bundle, an older one there": 5,
    "bundle --from": 36,
    "load --to": 73,
    "load --output --format oci": 29,
    "load --output --format sif": 19,
    "load --output --format directory": 29,
    "load --home": 15,
    "load --home, an older one there": 15,
}


@pytest.fixture(scope="module", name="cases")
def made_cases(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Commands, dict[str, Case]]]:
    if absent := missing(["docker-registry"]):
        pytest.skip(f"missing on this machine: {', '.join(absent)}")
    with all_cases(tmp_path_factory.mktemp("kills")) as (run, some):
        yield run, {one.name: one for one in some}


@pytest.mark.parametrize("name", EVERY)
def test_what_is_killed_leaves_nothing_half_made(cases: Cases, name: str) -> None:
    run, known = cases
    kills, wrong = kill(run, known[name], every=EVERY[name])
    assert wrong == []
    assert kills > 1


def test_no_command_is_left_out(cases: Cases) -> None:
    assert cases[1].keys() == EVERY.keys()
