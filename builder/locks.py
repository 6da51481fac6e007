"""Locks between builders that share a store: held by the kernel, so none outlives its holder."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(
    folder: Path, name: str, *, waiting: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Hold the lock of one thing in a folder; waits while another process or thread holds it.

    `waiting` is called once if there is something to wait for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
