"""The words in which faults of blocks are told: tests/data/blocks, tests/golden/blocks.

UPDATE_GOLDEN=1 writes the texts anew: read the difference.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from samples import GOLDEN, ROOT, compare_with_golden

from builder.compile.spec import block_faults
from builder.load.project import load_project
from builder.model.errors import BadInput

DATA = ROOT / "tests" / "data"
CASES = sorted(path.stem for path in (DATA / "blocks").glob("*.yaml"))


@pytest.mark.parametrize("case", CASES)
def test_faults_are_told_in_these_words(case: str, tmp_path: Path) -> None:
    root = tmp_path / "project"
    shutil.copytree(DATA / "good", root)
    shutil.copy(DATA / "blocks" / f"{case}.yaml", root / "recipes" / "core.yaml")
    with pytest.raises(BadInput) as caught:
        load_project(root, block_faults=block_faults)
    compare_with_golden(f"{caught.value}\n", f"blocks/{case}.txt")


def test_each_text_has_its_case() -> None:
    assert sorted(path.stem for path in (GOLDEN / "blocks").iterdir()) == CASES
