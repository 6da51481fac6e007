"""The commands, and the function that each of them runs.

A function's module is imported when its command runs: `plan` starts without what builds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from builder.build.shared import name_shared

if TYPE_CHECKING:
    from builder.cli.options import Options


class Command(NamedTuple):
    """A function of a module below builder.cli: it takes `Options`, and returns the exit code."""

    module: str
    function: str


COMMANDS = {
    "build": Command("building", "build"),
    "plan": Command("commands", "plan"),
    "spec": Command("commands", "spec"),
    "lint": Command("linting", "command"),
    "rehearse": Command("rehearsing", "command"),
    "explain": Command("commands", "explain"),
    "lock": Command("sourcing", "lock"),
    "fetch": Command("sourcing", "fetch"),
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
    "schema": Command("schemas", "print_schema"),
    "site-files": Command("site_files", "write_site_files"),
    "ci": Command("pipelines", "print_pipeline"),
    "catalog": Command("cataloguing", "catalog"),
}


def run(options: Options) -> int:
    """Run the command that `options` name; the exit code."""
    command = COMMANDS[options.command]
    name_shared(options.project)
    function = function_of(command)
    gc.freeze()  # modules stay for good: 0.1 s of `lint --all` went into looking through them
    return function(options)


def function_of(command: Command) -> Callable[[Options], int]:
    """Import what a command runs."""
    module = import_module(f"builder.cli.{command.module}")
    return cast("Callable[[Options], int]", getattr(module, command.function))
