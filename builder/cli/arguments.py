"""Options that several commands have, and how a command is declared.

A command with many options declares them in a module of its own, with what is here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from builder.cli.dispatch import COMMANDS
from builder.cli.help import EXIT_CODES
from builder.model.names import FLAVOURS, SELECTABLE
from builder.system.terminal import printable_lines

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


class Parser(argparse.ArgumentParser):
    """One that says what may have been meant, and where help is."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        hint = f"  hint: {self.prog} --help"
        self.exit(2, printable_lines(f"{self.prog}: error: {message}\n{hint}\n"))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """The same for a command as for the whole line: nothing may be left over."""
        given, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(_left_over(rest, self._option_string_actions))
        return given, rest


def _left_over(words: Sequence[str], options: Iterable[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

    text = f"unrecognized arguments: {' '.join(words)}"
    if named := [word for word in words if word in COMMANDS]:
        return f"{text}; the command comes first: build-images {named[0]} ..."
    for word in words:
        if close := get_close_matches(word.partition("=")[0], options, n=1):
            return f"{text}; did you mean {close[0]}?"
    return text


def a_path(text: str) -> Path:
    """The absolute path that an argument names; an empty one is of a variable that is not set."""
    return Path(not_empty(text)).absolute()


def not_empty(text: str) -> str:
    """An argument that says something: an empty one would be taken for one that was left out."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


def command(
    commands: Commands,
    name: str,
    about: str,
    parents: list[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    usage = "build-images [SELECTORS] [OPTIONS]" if name == "build" else None
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about[:1].upper() + about[1:] + ".",
        usage=usage,
        epilog=EXIT_CODES,
        parents=parents,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(own_parser=made)  # whose usage an error shows
    return made


def common_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--project",
        type=a_path,
        metavar="DIR",
        default=".",
        help="the folder that holds matrix.yaml, recipes/ and base-images/ (default: this one)",
    )
    return parser


def selectors_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group(
        "selectors (may be repeated; a version selects by prefix: 12 takes 12.4)"
    )
    examples = {
        "recipe": "hpc-base",
        "arch": "ppc64le (or ppc64el, amd64, ...)",
        "base": "debian13",
        "cuda": "12.4, or none",
        "mpi": "openmpi, openmpi5.0, or none",
    }
    for name in SELECTABLE:
        group.add_argument(
            f"--{name}", action="append", metavar=name.upper(), help=f"such as {examples[name]}"
        )
    group.add_argument("--image", action="append", metavar="GLOB", help="by image identifier")
    group.add_argument(
        "--flavour",
        action="append",
        choices=FLAVOURS,
        help="make the selected images to run programs (the default), or to build them too",
    )
    group.add_argument(
        "--cpu-target",
        action="append",
        metavar="TARGET",
        help="compile for one kind of processor: power9le, x86_64_v3, ... (default: generic)",
    )
    group.add_argument(
        "--all",
        action="store_true",
        help="the whole matrix, but for what selectors leave out, however many images that is",
    )
    return parser


def progress_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    level = parser.add_mutually_exclusive_group()
    level.add_argument("-q", "--quiet", action="store_true", help="tell only of failures")
    level.add_argument("-v", "--verbose", action="store_true", help="show all subprocess output")
    return parser


def offline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--offline",
        action="store_true",
        help="fetch no source: what is not in the store is named. Bases and packages that the home "
        "has, as `load --home` brings them, are asked of nobody",
    )


def output(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--output", "-o", type=a_path, metavar="DIR", help=text)


def no_native_tools(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-native-tools",
        action="store_true",
        help="emulate all of a foreign image's programs, also where this machine has their twins; "
        "what was built with them is built again with --no-cache alone",
    )


def max_index_age(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-index-age",
        type=number_of_days,
        metavar="DAYS",
        help="where the mirror has not all of a package index yet, take the one before if it is so "
        "much older at most (default: $BUILD_IMAGES_MAX_INDEX_AGE, or 14)",
    )


def no_lint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-lint", action="store_true", help="do not look for errors in what recipes became"
    )


def number_of_days(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number of days")
    return int(text)


def positive_number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)
