"""The options of `build-images setup`, as words for the script that does it."""

from __future__ import annotations

import argparse

from builder.cli.arguments import Commands, command, common_options, not_empty

ABOUT = """\
Install what images are built with and this machine lacks. Without more it is the user's part, which
never needs root: Apptainer, into the builder's home. What only root can do is told in commands that
can be pasted. `host` is the administrator's part, as root, once per host: packages, tools that all
users share, QEMU for programs of other architectures, and sub-ids of each --user. A clone of the
project has the same as ci/setup.
"""


def declare(commands: Commands) -> None:
    """The command's options."""
    about = "install what images are built with: the user's part, or the administrator's"
    setup = command(commands, "setup", about, [common_options()])
    setup.description = ABOUT
    setup.add_argument(
        "part", metavar="host", nargs="?", choices=("host",), help="the administrator's part"
    )
    setup.add_argument(
        "--user",
        action="append",
        type=not_empty,
        metavar="USER",
        help="with host: a user who is to have sub-ids (may be repeated)",
    )
    setup.add_argument(
        "--with-cosign", action="store_true", help="bring cosign, too, for publish --key keyless"
    )
    ways = setup.add_mutually_exclusive_group()
    ways.add_argument(
        "--dry-run", action="store_true", help="say what would be installed, and where"
    )
    ways.add_argument("--check", action="store_true", help="the same; exit code 4 if anything is")


def setup_words(given: argparse.Namespace) -> tuple[str, ...]:
    """The words of the script's command line."""
    if given.command != "setup":
        return ()
    part = [given.part] if given.part else []
    users = [word for user in given.user or () for word in ("--user", user)]
    named = ("with_cosign", "dry_run", "check")
    flags = [f"--{name.replace('_', '-')}" for name in named if getattr(given, name)]
    return (*part, *users, *flags)
