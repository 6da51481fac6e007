"""`build-images` as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def build_images(*words: object, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run the program; return its exit code, and all that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "builder", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(env or {})},
        check=False,
    )
    return done.returncode, done.stdout


def build_quietly(*words: object, env: Mapping[str, str]) -> None:
    """Run the program in this environment alone; what is wrong is printed, if anything is."""
    argv = [sys.executable, "-m", "builder", *map(str, words)]
    subprocess.run(argv, cwd=PROJECT, env=env, stdout=subprocess.DEVNULL, check=True)
