"""With --json, an error is one JSON object on standard output, with the same exit code."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from samples import ROOT

from builder.cli import main, plan
from builder.cli.commands import ABOUT, make_parser
from builder.cli.schema import schema_of

DATA = ROOT / "tests/data"
GOOD = f"--project={DATA / 'good'}"


def commands_with_json() -> list[str]:
    groups = make_parser()._subparsers
    assert groups is not None
    [action] = groups._group_actions
    parsers: dict[str, Any] = action.choices  # type: ignore[assignment]  # a mapping, here
    return [name for name in ABOUT if "--json" in parsers[name]._option_string_actions]


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """Return the object on standard output; standard error has the text as without --json."""
    try:
        code = main(argv)
    except SystemExit as ended:
        code = int(str(ended.code))
    printed = capsys.readouterr()
    error: dict[str, Any] = json.loads(printed.out)
    jsonschema.validate(error, schema_of("error"))
    assert error["exit_code"] == code
    assert error["message"].partition("\n")[0] in printed.err
    assert error["hint"] in printed.err
    return error


def test_every_command_with_json_is_tried() -> None:
    assert {"plan", "explain", "build", "verify", "publish", "pull", "lock", "diff", "gc"} <= {
        *commands_with_json()
    }


@pytest.mark.parametrize("command", commands_with_json())
def test_bad_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(capsys, command, "--json", "--no-such-option")
    assert error["exit_code"] == 2
    assert error["hint"] == f"build-images {command} --help"


def test_faults_have_their_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(DATA / "good", tmp_path / "project")
    shutil.copytree(DATA / "bad-unknown-key", tmp_path / "project", dirs_exist_ok=True)
    error = error_of(capsys, "plan", "--json", f"--project={tmp_path / 'project'}")
    assert error["exit_code"] == 2
    assert error["message"] == "1 fault in 1 file; nothing was built."
    [fault] = error["faults"]
    assert (fault["file"], fault["message"]) == ("recipes/core.yaml", "unknown key")
    assert fault["line"] > 1
    assert fault["key"]
    assert "valid:" in fault["hint"]


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["plan", GOOD, "--recipe", "absent"], 3, "--recipe absent"),
        (["explain", "--project=absent"], 2, "not a project"),
        (["diff", "absent", GOOD], 2, "absent: no such image"),
        (["check-host"], 2, "no image"),
        (["bundle", "--output=x.tar", "--from=a/b", "--key=x"], 2, "--key"),
    ],
)
def test_bad_input(
    argv: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    error = error_of(capsys, *argv, "--json")
    assert error["exit_code"] == code
    assert message in error["message"]


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "/x"), 2, "/x: Permission denied"),
        (OSError(28, "No space left on device"), 4, "No space left"),
        (MemoryError(), 4, "not enough memory"),
    ],
)
def test_what_python_raises(
    raised: BaseException,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> int:
        raise raised

    monkeypatch.setattr(plan, "load_plan", fails)
    error = error_of(capsys, "plan", "--json")
    assert error["exit_code"] == code
    assert message in error["message"]


def test_a_lacking_home(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BUILD_IMAGES_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    error = error_of(capsys, "gc", GOOD, "--json")
    assert error["exit_code"] == 4
    assert "BUILD_IMAGES_HOME" in error["hint"]


def test_no_second_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(options: plan.PlanOptions) -> int:
        options.print_json({"images": []})
        raise KeyboardInterrupt

    monkeypatch.setattr(plan, "run", fails)
    assert main(["plan", "--json", GOOD]) == 130
    assert json.loads(capsys.readouterr().out) == {"images": []}


class Unwritable(io.StringIO):
    """A standard output that takes nothing, and counts the attempts."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.attempts = number, 0

    def write(self, _: str) -> int:
        self.attempts += 1
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("argv", "full"),
    [
        (["policy", "test", str(DATA / "policy/cases")], 4),
        (["plan", GOOD, "--recipe", "absent"], 3),
        (["plan", "--no-such-option"], 2),
    ],
    ids=["result", "error", "bad usage"],
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE])
def test_a_document_that_cannot_be_written(
    argv: list[str],
    full: int,
    number: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without room it is an error that standard error names; a reader that ended is none."""
    unwritable = Unwritable(number)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", unwritable)
        try:
            code = main([*argv, "--json"])
        except SystemExit as ended:
            code = int(str(ended.code))
    assert (code, unwritable.attempts) == (141 if number == errno.EPIPE else full, 1)
    assert ("build-images" in capsys.readouterr().err) == ((full, number) != (4, errno.EPIPE))


def test_json_of_another_command_is_none_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shell", "absent", GOOD, "--", "jq", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_a_signal(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from builder.cli import main, plan\n"
        "plan.load_plan = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(main(['plan', '--json']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 130, done.stderr
    assert json.loads(done.stdout)["exit_code"] == 130
