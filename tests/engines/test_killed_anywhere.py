"""SIGKILL at a step, and the same command again.

`python bench/kills.py` does it at every step; here, at some of each command.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import pytest
from harness import need
from kill_cases import all_cases
from killing import Case, Commands, kill

pytestmark = pytest.mark.engines
Cases: TypeAlias = "tuple[Commands, dict[str, Case]]"
COMMANDS = (
    "pull --format oci",
    "pull --format sif",
    "pull --format charliecloud",
    "pull --format directory",
    "publish",
    "publish --from",
    "bundle",
    "bundle, an older one there",
    "bundle --from",
    "load --to",
    "load --output --format oci",
    "load --output --format sif",
    "load --output --format directory",
    "load --home",
    "load --home, an older one there",
)


@pytest.fixture(scope="module", name="cases")
def made_cases(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Commands, dict[str, Case]]]:
    need("docker-registry")
    with all_cases(tmp_path_factory.mktemp("kills")) as (run, some):
        yield run, {one.name: one for one in some}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_killed_leaves_nothing_half_made(cases: Cases, name: str) -> None:
    run, known = cases
    kills, wrong = kill(run, known[name], at_most=2)
    assert wrong == []
    assert kills == 2


def test_no_command_is_left_out(cases: Cases) -> None:
    assert sorted(cases[1]) == sorted(COMMANDS)
