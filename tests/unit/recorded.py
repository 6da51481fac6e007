"""The commands that code would start on this machine, as text that is compared with a golden file.

Nothing runs but mkdir. A command prints what the test has for it, and ends well unless the test
says otherwise. What differs from run to run is replaced: the folder of the test, and names that
are made up. UPDATE_GOLDEN=1 writes the files anew: read the difference.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from samples import compare_with_golden

from builder.build.engines import Tools
from builder.model.errors import StepFailed
from builder.system.home import ORDINARY_USER, Home
from builder.system.process import Completed, Processes

_MADE_UP = (
    (re.compile(r"\b[0-9a-f]{16}\b"), "<random>"),
    (re.compile(r"(?<!/bin)/(\.?[a-z]+)-[a-z0-9_]{8}\b"), r"/\1-<random>"),
    (re.compile(r"/tmp[a-z0-9_]{8}\b"), "/<random>"),
)


class Commands:
    """A machine with some programs, and what would have been started on it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.output: dict[str, str] = {}  # what a command prints, by words that are in it
        self.failing: set[str] = set()  # words of commands that fail
        self.hanging: set[str] = set()  # and of those that are ended when their time is over
        self.interrupted: set[str] = set()  # and of those during which Ctrl-C comes
        self._patch = patch
        self._text = ""
        for name in ("bin", "home", "work"):
            (folder / name).mkdir()
        self._patch.setattr(Processes, "capture", self._capture)
        self._patch.setattr(Processes, "logged", self._logged)
        self._patch.setattr(Home, "search_path", lambda _home: str(folder / "bin"))
        self._patch.setattr(shutil, "chown", self._chown)
        limits = {resource.RLIMIT_NOFILE: (1024, 4096), resource.RLIMIT_NPROC: (500, 700)}
        self._patch.setattr(resource, "getrlimit", limits.__getitem__)
        self._patch.setenv("STORAGE_DRIVER", "overlay")
        self._patch.setenv("USER", "somebody")
        self.tools = Tools(processes=Processes(), home=Home(path=folder / "home"))

    def install(self, *names: str) -> None:
        for name in names:
            program = self.folder / "bin" / name
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)

    @contextmanager
    def user(self, *, is_root: bool) -> Iterator[None]:
        """The time in which the caller is root, or an ordinary user."""
        self.note(f"# {'root' if is_root else 'an ordinary user'}")
        with self._patch.context() as patch:
            patch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
            patch.setattr(Tools, "ordinary_user", ORDINARY_USER if is_root else None)
            yield

    @property
    def lines(self) -> list[str]:
        """All that was noted."""
        return self._text.splitlines()

    def note(self, line: str) -> None:
        self._text += f"{self._normal(line)}\n"

    def compare(self, name: str) -> None:
        """Compare all that was noted with a golden file."""
        compare_with_golden(self._text, f"commands/{name}.txt")

    def _capture(self, argv: Sequence[Any], **options: Any) -> Completed:
        look = options.pop("look", None)
        words = self._started(argv, options)
        if words[0] == "mkdir":
            Path(words[-1]).mkdir(parents=True, exist_ok=True)
        if not self.interrupted.isdisjoint(words):
            raise KeyboardInterrupt
        hangs = not self.hanging.isdisjoint(words)
        return Completed(
            argv=words,
            returncode=0 if self.failing.isdisjoint(words) else 1,
            stdout=self._printed(words),
            timed_out=hangs,
            waiting=look(os.getpid()) if hangs and look else (),
        )

    def _chown(self, path: Path, user: str | int) -> None:
        self.note(f"$ chown {user} {path}")

    def _logged(self, argv: Sequence[Any], **options: Any) -> Completed:
        on_line = options.pop("on_line", None)
        words = self._started(argv, options)
        for line in self._printed(words).splitlines() if on_line else ():
            on_line(line)
        if not self.failing.isdisjoint(words):
            raise StepFailed("it failed")
        return Completed(argv=words, returncode=0)

    def _started(self, argv: Sequence[Any], options: Mapping[str, Any]) -> tuple[str, ...]:
        words = tuple(os.fspath(word) for word in argv)
        self.note(f"$ {shlex.join(words)}")
        for name, value in options.items():
            if name == "env":
                for variable, content in sorted((value or {}).items()):
                    self.note(f"    {variable}={content}")
            elif value not in (None, ""):
                self.note(f"  {name}: {value}")
        return words

    def _printed(self, words: Sequence[str]) -> str:
        line = shlex.join(words)
        return next((text for part, text in self.output.items() if part in line), "")

    def _normal(self, text: str) -> str:
        text = text.replace(str(self.folder), "FOLDER")
        for pattern, name in _MADE_UP:
            text = pattern.sub(name, text)
        return text
