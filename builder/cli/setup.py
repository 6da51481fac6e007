"""`build-images setup`: install the tools for building images.

This is the set-up of a clone (`ci/setup`) without the virtual environment.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import builder
from builder.cli.options import Options, Parser, not_empty
from builder.model.errors import StepFailed
from builder.system.home import Home
from builder.system.process import Processes

_SCRIPT = Path(builder.__file__).parent / "host/setup/main.sh"
_DESCRIPTION = """\
Install the tools for building images that this machine lacks. The default is the user's part, which
never needs root: it installs Apptainer into the builder's home, and prints the commands for steps
that need root. `host` is the administrator's part, run as root once per host: packages, tools
shared by all users, QEMU for programs of other architectures, and sub-ids for each --user. In a
clone of the project, ci/setup does the same.
"""


class SetupOptions(Options):
    part: str | None
    user: Sequence[str]
    with_cosign: bool
    dry_run: bool
    check: bool
    print_path: bool
    print_completion: str | None


def declare(parser: Parser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument(
        "part", metavar="host", nargs="?", choices=("host",), help="the administrator's part"
    )
    text = "with host: give this user sub-ids (may be repeated)"
    parser.add_list("--user", text, "USER", convert=not_empty)
    parser.add_flag("--with-cosign", "also install cosign, for publish --key keyless")
    ways = parser.add_mutually_exclusive_group()
    parser.add_flag("--dry-run", "show what would be installed, and where", to=ways)
    parser.add_flag("--check", "exit code 4 if anything is missing", to=ways)
    parser.add_flag(
        "--print-path", "show the folders of build-images and its tools, for PATH", to=ways
    )
    text = "print the script that completes commands, options and values in bash, zsh or fish"
    shells = ("bash", "zsh", "fish")
    ways.add_argument("--print-completion", metavar="SHELL", choices=shells, help=text)


def argv_of(options: SetupOptions) -> list[str]:
    """Return the arguments of the set-up script."""
    part = [options.part] if options.part else []
    users = [word for user in options.user for word in ("--user", user)]
    named = ("with_cosign", "dry_run", "check")
    flags = [f"--{name.replace('_', '-')}" for name in named if getattr(options, name)]
    return [*part, *users, *flags]


def program_folders() -> list[Path]:
    """Return the folders of this program and of the tools that set-up installs."""
    home, program = Home.of_environment(), _own_program() or sys.executable
    shared = [home.shared / "tools/bin"] if home.shared else []
    return [Path(program).parent, home.tools, *shared]


def _own_program() -> str | None:
    """Return the path of `build-images`; None for `python -m builder`."""
    program = shutil.which(sys.argv[0])
    return str(Path(program).absolute()) if program else None


def run(options: SetupOptions) -> int:
    """Run the set-up and return its exit code."""
    if options.print_path:
        print(os.pathsep.join(map(str, program_folders())))
        return 0
    if options.print_completion:
        from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - for this alone

        print(shellcode(["build-images"], shell=options.print_completion))
        return 0
    setup = f"{_own_program() or 'build-images'} setup"
    own = {"BUILD_IMAGES_SETUP": setup, "BUILD_IMAGES_PYTHON": sys.executable}
    with tempfile.TemporaryDirectory() as folder:
        try:
            Processes().logged(
                ["bash", str(_SCRIPT), *argv_of(options)],
                log=Path(folder) / "log",  # the script writes its own log
                env={**own, "BUILD_IMAGES_CLONE": ""},
                what="setup",
                on_line=lambda line: print(line, file=sys.stderr, flush=True),
            )
        except StepFailed as error:
            return error.status if error.status > 0 else 1
    return 0
