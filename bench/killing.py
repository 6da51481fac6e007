"""A command that is killed at a step, and run again to its end: for `kills`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from builder.build.workspace import remove

PROJECT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a command ended: `steps` is how many it took, if it was not killed."""

    status: int
    steps: int
    said: str


class Case(Protocol):
    """A command that is killed; what is checked gives a line for each thing that is wrong."""

    @property
    def name(self) -> str: ...

    def fresh(self, at: int) -> Sequence[str | Path]:
        """Have all as it is before the command is killed at a step; the command."""

    def killed(self) -> list[str]:
        """What is wrong after the kill."""

    def ended(self) -> list[str]:
        """What is wrong after the command ended well; what the first one left is what is right."""


class Commands:
    """Runs `build-images`, with a home and a folder for temporary files of its own; kills it."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server, self._said = server, folder / "said"
        self.home, self.temporary = folder / "home", folder / "tmp"

    def run(self, *argv: str | Path, at: int = 0) -> Ended:
        """Run one to its end, or until SIGKILL comes before a step; 0 is none."""
        asked = {"argv": list(map(str, argv)), "at": at, "said": str(self._said)}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        found = json.loads(self._server.stdout.readline())
        return Ended(**found, said=self._said.read_text())

    def left(self) -> list[str]:
        """Temporary files, and half-made ones in the home."""
        half = [one.relative_to(self.home).as_posix() for one in self.home.rglob("*partial*")]
        return [*half, *(f"TMPDIR/{one.name}" for one in self.temporary.iterdir())]


@contextlib.contextmanager
def commands(folder: Path) -> Iterator[Commands]:
    """Commands whose home is below a folder."""
    words = [sys.executable, str(PROJECT / "bench/killed_at.py")]
    temporary = folder / "tmp"
    temporary.mkdir()
    env = {
        **os.environ,
        "BUILD_IMAGES_HOME": str(folder / "home"),
        "PYTHONPATH": str(PROJECT),
        "TMPDIR": str(temporary),
    }
    with subprocess.Popen(
        words, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        yield Commands(server, folder)
        assert server.stdin is not None
        server.stdin.close()


def kill(run: Commands, case: Case, at_most: int | None = None) -> tuple[int, list[str]]:
    """Kill a command at each step, or at some: the number of kills, and a line for each fault."""
    whole = run.run(*case.fresh(0))
    assert whole.status == 0, whole.said
    assert case.ended() == []
    steps, kills, wrong = whole.steps, 0, list[str]()
    for at in _steps(whole.steps, at_most):
        for one in run.temporary.iterdir():
            remove(one)
        words = case.fresh(at)
        first = run.run(*words, at=at)
        kills += first.status == -signal.SIGKILL
        found = [] if first.status in {0, -signal.SIGKILL} else [f"first: {first}"]
        found += [f"killed: {one}" for one in case.killed()]
        again = run.run(*words)
        found += [f"again: {one}" for one in case.ended()]
        found += [] if again.status == 0 else [f"again: {again}"]
        found += [f"left: {one}" for one in run.left()]
        if found:
            wrong.append(f"{case.name}, step {at} of {steps}: {'; '.join(found)}")
    return kills, wrong


def _steps(number: int, at_most: int | None) -> list[int]:
    """All steps, or some of them at equal distances, the first included; counted from 1."""
    every = max(1, number // at_most) if at_most else 1
    return list(range(1, number + 1, every))[:at_most]
