"""Completion in real shells: on a terminal, with the Tab key, as users have it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import PROJECT

pytestmark = pytest.mark.engines
IMAGE = "hpc-base-1.0-debian13-x86_64"
# Arguments that start the shell without the user's own files, and how it reads the script.
SHELLS = {
    "bash": (
        ["--norc", "--noprofile", "-i"],
        'eval "$(build-images setup --print-completion bash)"',
    ),
    "zsh": (
        ["-f", "-i"],
        'autoload -Uz compinit; compinit -u; eval "$(build-images setup --print-completion zsh)"',
    ),
    "fish": (["--no-config", "-i"], "build-images setup --print-completion fish | source"),
}
HERE = [shell for shell in SHELLS if shutil.which(shell)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the program on PATH, and one with an image below out/."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "out" / IMAGE).mkdir(parents=True)
    (tmp_path / "out" / IMAGE / "manifest.json").touch()
    program = tmp_path / "bin/build-images"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m builder "$@"\n')
    program.chmod(0o755)
    (tmp_path / "matrix.yaml").write_text("{}\n")
    return tmp_path


class Shell:
    """A shell on a terminal of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        words, script = SHELLS[name]
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        python = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PATH": path, "PYTHONPATH": python, "TERM": "xterm", "COLUMNS": "200"}
        env |= {"HOME": str(folder), "PS1": "$ "}
        self._pid, self._master = pty.fork()
        if not self._pid:
            os.chdir(folder)
            os.execvpe(name, [name, *words], env)
        self.until(f"{script}; echo REA''DY\n", "READY\r")

    def until(self, typed: str, expected: str, seconds: float = 60) -> str:
        """Type something, and return what is on the screen once it has this text."""
        os.write(self._master, typed.encode())
        screen, end = "", time.monotonic() + seconds
        while expected not in screen and time.monotonic() < end:
            if select.select([self._master], [], [], 0.2)[0]:
                screen += os.read(self._master, 1 << 16).decode(errors="replace")
        assert expected in screen, screen
        return screen

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._master)


def completions(shell: str, folder: Path, line: str) -> set[str]:
    """What argcomplete returns for a line: the words of a list that a shell would show."""
    env = {**os.environ, "PYTHONPATH": str(PROJECT) + os.pathsep + os.environ.get("PYTHONPATH", "")}
    env |= {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": shell, "COMP_LINE": line}
    env |= {"COMP_POINT": str(len(line.encode())), "COMP_TYPE": "9", "_ARGCOMPLETE_IFS": "\n"}
    found = folder / "found"
    words = ["bash", "-c", 'exec "$@" 8> found', "-", sys.executable, "-m", "builder"]
    subprocess.run(words, env=env, cwd=folder, check=True)
    return {re.split(r"[:\t]", word)[0].strip() for word in found.read_text().splitlines()}


@pytest.mark.parametrize("shell", HERE)
def test_tab_completes(shell: str, folder: Path) -> None:
    terminal = Shell(shell, folder)
    try:
        terminal.until("build-images expl\t", "explain")
        terminal.until(" --mpi openmpi5\t", "openmpi5.0")
        terminal.until("\x15build-images logs hpc\t", IMAGE)
    finally:
        terminal.end()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("build-images pl", {"plan"}),
        ("build-images --no-c", {"--no-cache"}),
        ("build-images --recipe hpc-bas", {"hpc-base"}),
        ("build-images plan --base rocky", {"rockylinux8", "rockylinux9"}),
        ("build-images plan --cuda 12.4", {"12.4"}),
        ("build-images explain --arch ppc", {"ppc64le"}),
        ("build-images explain --cpu-target power9", {"power9le"}),
        ("build-images --format s", {"sif"}),
        ("build-images diff hpc", {IMAGE}),
        ("build-images logs x --check mpi4", {"mpi4py"}),
        ("build-images blocks hdf", {"hdf5"}),
        ("build-images schema matr", {"matrix"}),
        ("build-images setup --print-completion f", {"fish"}),
        ("build-images plan --project=absent --recipe hpc", set()),
    ],
)
def test_what_is_completed(line: str, expected: set[str], folder: Path) -> None:
    assert completions("bash", folder, line) == expected


def test_ordinary_runs_import_nothing_of_it() -> None:
    code = (
        "import sys; from builder.cli import main\n"
        "try: main(['plan', '--help'])\n"
        "finally: assert 'argcomplete' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=PROJECT, check=False
    )
    assert done.returncode == 0, done.stderr
