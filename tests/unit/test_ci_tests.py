"""ci/tests: two processes, the worse of their exit codes, and nothing without room for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PYTHON = "#!/bin/sh\necho /somewhere/home\n"
FREE = "#!/bin/sh\necho Avail; echo ' {free}'\n"
PYTEST = """#!/bin/sh
for word; do case $word in --ignore=*) echo first; exit {first};; esac; done
echo second; exit {second}
"""


def run(tmp_path: Path, *, free: int = 99, first: int = 0, second: int = 0) -> tuple[int, str, str]:
    """The script in a project whose programs are told what to say."""
    (tmp_path / "ci").mkdir()
    shutil.copy(PROJECT / "ci/tests", tmp_path / "ci")
    texts = {
        ".venv/bin/python": PYTHON,
        ".venv/bin/pytest": PYTEST.format(first=first, second=second),
        "bin/df": FREE.format(free=free),
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "ci/tests"],
        env={**os.environ, "LC_ALL": "C", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("first", "second", "worst"), [(0, 0, 0), (1, 0, 1), (0, 2, 2), (1, 2, 2)])
def test_either_that_fails_has_failed(tmp_path: Path, first: int, second: int, worst: int) -> None:
    assert run(tmp_path, first=first, second=second) == (worst, "first\nsecond\n", "")


def test_without_room_nothing_is_begun(tmp_path: Path) -> None:
    code, out, error = run(tmp_path, free=3)
    assert (code, out) == (4, "")
    assert "/somewhere/home: 3 GB free, and all tests need 15 GB; nothing was begun" in error
