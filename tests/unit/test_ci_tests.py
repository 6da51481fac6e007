"""ci/tests.py: every file in one job, the longest first, and one exit code over all."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

PROJECT = Path(__file__).parents[2]
RUNNER = PROJECT / "ci/tests.py"
PYTHON = "#!/bin/sh\necho {home}\n"
PYTEST = """#!/bin/sh
for word; do case $word in --junitxml=*) result=${{word#*=}};; tests/*) last=$word;; esac; done
module=$(echo "${{last%.py}}" | tr / .)
echo "$last" >> started
echo "this is what pytest printed of $last"
cat > "$result" <<END
<testsuites><testsuite><testcase classname="$module" name="test_a" time="2.5"/>
<testcase classname="$module.TestB" name="test_b" time="1"><skipped message="no GPU here"/>
</testcase></testsuite></testsuites>
END
case $last in *{bad}*) exit 1;; esac
"""
HANGING = """#!/bin/sh
trap 'touch "heard-$$"; sleep 0.5; echo ended >> ended; exit 2' INT
touch "up-$$"
while :; do sleep 0.1; done
"""
MYPY = "#!/bin/sh\necho 'builder/x.py:1: error: a wrong type'; exit \"${MYPY_STATUS:-0}\"\n"
FILES = {
    "tests/unit/test_one.py": "",
    "tests/unit/test_two.py": "",
    "tests/engines/test_main_job.py": "",
    "tests/engines/test_long.py": "",
    "tests/engines/test_of_images.py": "def test_a(hpc_base: dict[str, Path]): ...",
    "tests/engines/test_short.py": "",
    "tests/engines/test_shorter.py": "",
}
SECONDS = {
    "tests/engines/test_main_job.py": 50.0,
    "tests/engines/test_long.py": 100.0,
    "tests/engines/test_of_images.py": 200.0,
    "tests/engines/test_short.py": 1.0,
    "tests/engines/test_shorter.py": 0.5,
}


@pytest.fixture(name="runner")
def loaded_runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_tests", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def project(folder: Path, pytest_program: str) -> dict[str, str]:
    """Make a folder a project with these test files; the environment to run its tests in."""
    (folder / "ci").mkdir()
    shutil.copy(RUNNER, folder / "ci")
    programs = {
        ".venv/bin/python": PYTHON.format(home=folder),
        ".venv/bin/pytest": pytest_program,
        ".venv/bin/mypy": MYPY,
    }
    texts = {**FILES, **programs, "tests/durations.json": json.dumps(SECONDS)}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return {**os.environ, "LC_ALL": "C"}


def run(
    folder: Path, *, bad: str = "nothing", mypy_status: int = 0
) -> subprocess.CompletedProcess[str]:
    """The runner in such a project, run to its end; the pytest of the file `bad` fails."""
    env = {**project(folder, PYTEST.format(bad=bad)), "MYPY_STATUS": str(mypy_status)}
    return subprocess.run(
        [sys.executable, folder / "ci/tests.py"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_every_test_file_of_this_project_is_in_one_job(runner: ModuleType) -> None:
    jobs = runner.all_jobs(runner.recorded())
    files = [file for job in jobs for file in job.files]
    expected = [
        *PROJECT.glob("tests/unit/**/test_*.py"),
        *PROJECT.glob("tests/engines/**/test_*.py"),
    ]
    assert sorted(files) == sorted(str(path.relative_to(PROJECT)) for path in expected)


def test_the_main_job_starts_first_and_what_wants_its_images_waits_for_it(
    runner: ModuleType,
) -> None:
    jobs = runner.all_jobs(runner.recorded())
    assert runner.MAIN_JOB in jobs[0].files
    seconds = [job.seconds for job in jobs[1:]]
    assert seconds == sorted(seconds, reverse=True)
    started = runner.Running(job=jobs[0], process=None)
    images = [job for job in jobs if job.wants_images]
    assert images
    assert runner.next_job(images, [started]) is None
    assert runner.next_job(images, []) is images[0]


def test_jobs_beyond_the_processors_start_where_these_are_idle(runner: ModuleType) -> None:
    cpus = runner.cpus()
    assert runner.has_room(cpus - 1, 0.0)
    assert not runner.has_room(cpus, runner.IDLE / 2)
    assert runner.has_room(cpus, 1.0)
    assert not runner.has_room(runner.MOST_PER_CPU * cpus, 1.0)


def test_all_are_run_and_what_was_not_tried_is_said(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "started").read_text().splitlines()) == 6  # the short ones share one
    assert done.stdout.splitlines()[-2:] == [
        "not tried on this machine: 6 x no GPU here",
        "6 passed, 0 failed, 6 skipped",
    ]
    assert "the ten slowest tests" in done.stdout
    durations = json.loads((tmp_path / "out/test-results/durations.json").read_text())
    assert durations["tests/engines/test_long.py"] == 3.5
    assert "this is what pytest printed" not in done.stdout


def test_a_job_that_failed_is_shown_whole_and_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, bad="test_long")
    assert done.returncode == 1
    assert "FAIL" in done.stdout
    assert "this is what pytest printed of tests/engines/test_long.py" in done.stdout
    assert done.stdout.splitlines()[-1] == "6 passed, 1 failed, 6 skipped"


def test_wrong_types_are_shown_and_fail_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, mypy_status=1)
    assert done.returncode == 1
    assert "builder/x.py:1: error: a wrong type" in done.stdout
    assert done.stdout.splitlines()[-1] == "6 passed, 1 failed, 6 skipped"


def test_without_room_nothing_is_begun(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "free_gb", lambda: ("/somewhere/home", 3))
    assert runner.main([]) == 4
    error = capsys.readouterr().err
    assert "/somewhere/home: 3 GB free, and all tests need" in error
    assert "nothing was begun" in error


@pytest.mark.parametrize("impatient", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_all_at_once(
    tmp_path: Path, number: signal.Signals, impatient: bool
) -> None:
    """Sent to the runner alone, as a CI system may; each pytest is interrupted, and waited for."""
    env = project(tmp_path, HANGING)
    background = "--ignore-signal=INT" if number == signal.SIGTERM else "--default-signal=INT"
    command = ["env", background, sys.executable, str(tmp_path / "ci/tests.py")]
    with subprocess.Popen(command, env=env, cwd=tmp_path, start_new_session=True) as child:
        try:
            while len(list(tmp_path.glob("up-*"))) < 2:
                time.sleep(0.01)
            child.send_signal(number)
            while impatient and len(list(tmp_path.glob("heard-*"))) < 2:
                time.sleep(0.01)
            for again in (signal.SIGINT, signal.SIGTERM) if impatient else ():
                child.send_signal(again)
            assert child.wait(timeout=30) == 130
        finally:
            for path in tmp_path.glob("up-*"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(path.name.removeprefix("up-")), signal.SIGKILL)
            child.kill()
    ups = len(list(tmp_path.glob("up-*")))
    assert (tmp_path / "ended").read_text() == "ended\n" * ups
