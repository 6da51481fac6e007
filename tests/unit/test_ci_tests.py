"""ci/tests: two processes, the worse of their exit codes, and nothing without room for them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PYTHON = "#!/bin/sh\necho /somewhere/home\n"
FREE = "#!/bin/sh\necho Avail; echo ' {free}'\n"
PYTEST = """#!/bin/sh
for word; do case $word in --ignore=*) echo first; exit {first};; esac; done
echo second; exit {second}
"""


HANGING = """#!/bin/sh
trap 'touch "told-$$"; sleep 0.5; echo ended >> ended; exit 2' INT
touch "up-$$"
while :; do sleep 0.1; done
"""


def project(tmp_path: Path, *, free: int = 99, pytest: str = HANGING) -> dict[str, str]:
    """A project whose programs are told what to say; the environment for its script."""
    (tmp_path / "ci").mkdir()
    shutil.copy(PROJECT / "ci/tests", tmp_path / "ci")
    texts = {
        ".venv/bin/python": PYTHON,
        ".venv/bin/pytest": pytest,
        "bin/df": FREE.format(free=free),
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return {**os.environ, "LC_ALL": "C", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}


def run(tmp_path: Path, *, free: int = 99, first: int = 0, second: int = 0) -> tuple[int, str, str]:
    """The script in such a project, run to its end."""
    env = project(tmp_path, free=free, pytest=PYTEST.format(first=first, second=second))
    done = subprocess.run(
        [tmp_path / "ci/tests"],
        env=env,
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


@pytest.mark.parametrize("impatient", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_both_at_once(
    tmp_path: Path, number: signal.Signals, impatient: bool
) -> None:
    """Told to the script alone, as a CI system may; each is told as by Ctrl-C, and waited for."""
    env = project(tmp_path)
    background = "--ignore-signal=INT" if number == signal.SIGTERM else "--default-signal=INT"
    command = ["env", background, str(tmp_path / "ci/tests")]
    with subprocess.Popen(command, env=env, start_new_session=True) as child:
        try:
            while len(list(tmp_path.glob("up-*"))) < 2:
                time.sleep(0.01)
            child.send_signal(number)
            while impatient and len(list(tmp_path.glob("told-*"))) < 2:
                time.sleep(0.01)
            for again in (signal.SIGINT, signal.SIGTERM) if impatient else ():
                child.send_signal(again)
            assert child.wait(timeout=30) == 130
        finally:
            for one in tmp_path.glob("up-*"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(one.name.removeprefix("up-")), signal.SIGKILL)
            child.kill()
    assert (tmp_path / "ended").read_text() == "ended\n" * 2
