"""The commands, and the function that each of them runs.

A function's module is imported when its command runs: `plan` starts without what builds.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from builder.build.shared import name_shared

if TYPE_CHECKING:
    from builder.cli.options import Options


class Command(NamedTuple):
    """A function of a module below builder.cli: it takes `Options`, and returns the exit code.

    A `brief` one only looks, and makes texts of what it sees.
    """

    module: str
    function: str
    brief: bool = False


COMMANDS = {
    "build": Command("building", "build"),
    "plan": Command("unchanged", "plan", brief=True),
    "spec": Command("unchanged", "spec", brief=True),
    "lint": Command("linting", "command", brief=True),
    "rehearse": Command("rehearsing", "command"),
    "explain": Command("commands", "explain", brief=True),
    "lock": Command("sourcing", "lock", brief=True),
    "fetch": Command("sourcing", "fetch", brief=True),
    "verify": Command("verifying", "verify"),
    "reproduce": Command("reproducing", "reproduce"),
    "publish": Command("publishing", "publish"),
    "bundle": Command("bundling", "bundle"),
    "load": Command("loading", "load"),
    "doctor": Command("examining", "doctor"),
    "setup": Command("setting_up", "set_up"),
    "check-host": Command("checking", "check_host"),
    "gc": Command("collecting", "collect"),
    "keys": Command("keys", "keys"),
    "pull": Command("pulling", "pull_image"),
    "policy": Command("trying", "try_policy"),
    "schema": Command("schemas", "print_schema", brief=True),
    "site-files": Command("site_files", "write_site_files", brief=True),
    "ci": Command("pipelines", "print_pipeline", brief=True),
    "catalog": Command("cataloguing", "catalog", brief=True),
}


def run(options: Options) -> int:
    """Run the command that `options` name; the exit code."""
    command = COMMANDS[options.command]
    name_shared(options.project)
    with _without_collector():
        function = function_of(command)
        if command.brief:
            return function(options)
    return function(options)


def function_of(command: Command) -> Callable[[Options], int]:
    """Import what a command runs."""
    module = import_module(f"builder.cli.{command.module}")
    return cast("Callable[[Options], int]", getattr(module, command.function))


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Leave cyclic garbage alone: a sixth of a short command's time went into looking for it.

    What is frozen it passes over later: modules, and when Python looks once more at its end, all.
    """
    gc.disable()
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        _freeze_once()
        gc.enable()


@functools.cache
def _freeze_once() -> None:
    gc.freeze()
