"""What goes wrong ends in one clear error: what, where, and what next; never in a traceback."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from projects import copy_of_project
from samples import ROOT, compare_with_golden

from builder.cli import main, plan
from builder.system.home import failure_of
from builder.system.terminal import (
    LiveProgress,
    in_colour,
    printable,
    printable_lines,
    progress_for,
)

PROJECT = f"--project={ROOT}"
ESCAPE = "\x1b]0;steered\x07"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What bad usage is told of it, without the usage."""
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("usage: build-images")
    assert gc.isenabled()
    return said.err.partition("\nbuild-images")[2]


def run(*argv: str, stdout: int, **more: str) -> subprocess.CompletedProcess[str]:
    """A command line of its own, whose output is buffered as usual."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, "-m", "builder", *argv],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
        env={**known, "PYTHONDONTWRITEBYTECODE": "1", **more},
    )


def test_what_may_have_been_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "plan", "--recipee=hpc-base") == (
        " plan: error: unrecognized arguments: --recipee=hpc-base; did you mean --recipe?\n"
        "  hint: build-images plan --help\n"
    )
    assert "; did you mean --jobs?" in error_of(capsys, "--jbos", "3")
    assert "did you mean" not in error_of(capsys, "plan", "--qqq")
    assert "did you mean plan?" in error_of(capsys, "plann")
    assert "the command comes first: build-images plan ..." in error_of(capsys, "--all", "plan")


@pytest.mark.parametrize("project", [[PROJECT], ["--project", str(ROOT)]])
def test_the_project_may_come_before_the_command(
    project: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*project, "plan", "--recipe", "hpc-base", "--base", "debian13"]) == 0
    assert "hpc-base-1.0-debian13-openmpi5.0-x86_64" in capsys.readouterr().out
    assert "expected one argument" in error_of(capsys, "--project")


# Of PROJECT, of NONE (a project without images), or of no project.
WRONG = """\
nonsense
plan --qqq
plan --all plan
plan --project=absent
load x.tar --home --format sif
load x.tar --home --arch x86_64
load x.tar --output out
load x.tar --output out --format sif --checkout there
load x.tar --home --policy=absent.yaml
load x.tar --to a/b --jobs 0
load x.tar --to a/b --jobs many
bundle --output x.tar --from a/b --key x
bundle --output x.tar NONE
publish --to a/b --from c/d --key x
publish --to quay.io PROJECT
publish --to a/b NONE
gc --unused-for long
verify absent
verify . --repeats 3
verify . --prometheus x
verify . --ranks 2 --timeout 9
verify . --bind-mpi auto --launcher-option=x
verify . --launcher mpirun --bench
verify . --launcher mpirun --runner buildah
verify . --launcher srun --ranks 2 --nodes 3
reproduce absent NONE
check-host
check-host absent
check-host absent --output=none
check-host x --record
check-host /dev/null
doctor x
doctor --gpu absent
keys generate --output ..
catalog NONE
catalog --registry Quay.io NONE
site-files --registry Quay NONE
site-files --registry quay.io/site --folder a:b NONE
ci gitlab --native-runner sparc=x NONE
ci gitlab --native-runner x NONE
pull quay.io/site/a:1 --format sif --policy absent.yaml
policy test absent
setup host --user=
"""


def test_all_that_is_told_of_wrong_command_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, empty = [], f"--project={copy_of_project(tmp_path / 'project')}"
    for line in WRONG.splitlines():
        argv = [{"PROJECT": PROJECT, "NONE": empty}.get(word, word) for word in line.split()]
        try:
            code: object = main(argv)
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        said = err[err.index("\nbuild-images") + 1 :] if err.startswith("usage: ") else err
        assert out == ""
        lines.append(f"$ {line}: {code}\n{said}")
    told = "".join(lines).replace(str(tmp_path), "HERE").replace(str(ROOT), "ROOT")
    compare_with_golden(told, "wrong.txt")


@pytest.mark.parametrize(
    "argv",
    [
        ["verify", ""],
        ["reproduce", ""],
        ["check-host", ""],
        ["check-host", "x", "--host="],
        ["plan", "--project="],
        ["spec", "--output="],
        ["keys", "generate", "-o", ""],
        ["pull", "quay.io/x/y:z", "--format=sif", "--policy="],
        ["publish", "--to=quay.io/x", "--key="],
        ["publish", "--to=quay.io/x", "--from="],
        ["catalog", "--images-in="],
        ["verify", "x", "--bench", "--prometheus="],
    ],
    ids=" ".join,
)
def test_an_empty_argument_is_not_one_that_was_left_out(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes of a variable that is not set: images would go unsigned, or elsewhere."""
    assert ": must not be empty\n" in error_of(capsys, *argv)


def test_a_file_in_the_way_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["spec", PROJECT, "--recipe=hpc-base", "--arch=x86_64", "--output=file"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"build-images: {tmp_path / 'file'}/hpc-base-1.0-")
    assert said.endswith(": Not a directory\n")


@pytest.mark.parametrize(
    ("number", "code", "hint"),
    [(errno.ENOSPC, 4, "disk space"), (errno.EDQUOT, 4, "disk space"), (errno.EROFS, 2, "another")],
)
def test_what_a_full_or_closed_disk_needs(
    number: int,
    code: int,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number), "a/file")

    monkeypatch.setattr(plan, "load_plan", fails)
    assert main(["plan"]) == code
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"build-images: a/file: {os.strerror(number)}"
    assert hint in second


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_home_that_cannot_be_written_to_is_what_the_machine_lacks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "none/home"
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(home))
    for place, code in ((home / "work", 4), (tmp_path / "none", 4), (tmp_path / "out", 2)):
        assert failure_of(OSError(number, os.strerror(number), str(place))).exit_code == code


def test_what_needs_more_memory_than_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(plan, "load_plan", fails)
    assert main(["plan"]) == 4
    assert capsys.readouterr().err == "build-images: not enough memory\n"


def test_a_user_without_a_home(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("BUILD_IMAGES_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert main(["plan", PROJECT]) == 4
    assert "set BUILD_IMAGES_HOME, or HOME" in capsys.readouterr().err


def test_an_error_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", PROJECT, f"--to=quay.io/{ESCAPE}"]) == 2
    said = capsys.readouterr().err
    assert "\\x1b]0;steered\\x07" in said
    assert printable_lines(said) == said
    assert printable_lines(said := error_of(capsys, "plan", f"--x{ESCAPE}")) == said


def test_texts_are_printable() -> None:
    assert printable("a\nb\x1b[31m\udcff\u202e") == r"a\nb\x1b[31m\udcff\u202e"
    assert printable("abcdef", most=3) == "abc..."
    assert printable("abc", most=3) == "abc"
    assert printable_lines("a\n\tb\r\x9b1m") == "a\n\tb\\r\\x9b1m"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_when_there_are_colours(
    variables: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert in_colour() is wanted
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not in_colour()
    for there in (True, False):  # a table that is drawn anew, unless all or nothing is told
        monkeypatch.setattr(sys.stderr, "isatty", lambda there=there: there)
        live = [isinstance(progress_for(level), LiveProgress) for level in (0, 1, 2)]
        assert live == [False, there and variables.get("TERM") == "xterm", False]


@pytest.mark.parametrize("argv", [["--version"], ["ci", "github"], ["schema", "recipe"]])
def test_nobody_reads_the_output(argv: list[str]) -> None:
    """As `| head -1`: what is left in the buffer is written when all is done, or never."""
    reading, writing = os.pipe()
    os.close(reading)
    done = run(*argv, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_the_output_has_no_room() -> None:
    with Path("/dev/full").open("w") as full:
        done = run("--version", stdout=full.fileno())
    assert done.returncode == 4
    assert done.stderr.startswith("build-images: No space left on device\n")


@pytest.mark.parametrize(
    ("redirection", "argv", "code", "text"),
    [
        (">&-", "--version", 2, "build-images: Bad file descriptor\n  hint: standard output is "),
        (">&-", "plan --json --project tests/data/good", 2, "build-images: Bad file descriptor\n"),
        (">&- 2>&-", "--version", 2, ""),
        ("2>&-", "plan --project tests/data", 2, ""),
        ("<&- 2>&-", "plan --json --project tests/data", 2, '{\n "schema": "build-images/error'),
    ],
)
def test_a_stream_is_closed(redirection: str, argv: str, code: int, text: str) -> None:
    command = f"exec {sys.executable} -m builder {argv} {redirection}"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, f"{done.stdout}{done.stderr}"[: len(text) or None]) == (code, text)


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_open_in_programs(redirection: str) -> None:
    opened = "import subprocess, builder.cli; builder.cli._open_streams(); "
    opened += "raise SystemExit(subprocess.call(['sh', '-c', ': 3<&0 4>&1 5>&2']))"
    argv = ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, opened]
    assert subprocess.run(argv, check=False, cwd=ROOT, capture_output=True).returncode == 0


def test_a_locale_without_our_marks() -> None:
    cases = "tests/data/policy/cases"
    done = run("policy", "test", cases, stdout=subprocess.PIPE, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(r"\u2713 ")


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["load", "x.tar", "--output", "y"], "--output needs --format"),
        (["load", "x.tar", "--home", "--arch", "x86_64"], "--arch needs --output"),
        (["verify", "x", "--repeats", "3"], "--repeats needs --bench"),
        (["verify", "x", "--bench", "--launcher", "srun"], "exclude each other"),
    ],
)
def test_options_that_do_not_go_together_show_their_own_command(
    argv: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    said = capsys.readouterr().err
    assert said.startswith(f"usage: build-images {argv[0]} ")
    assert error in said
    assert f"hint: build-images {argv[0]} --help" in said
