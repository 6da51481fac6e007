"""The parser, and the options that several commands share.

A command's module has a class that names the options it reads, `declare`, which adds its own to a
parser, and `run`, which takes them and returns the exit code. `builder.cli.commands` adds --project
and the options of the classes that it inherits from.
"""

from __future__ import annotations

import argparse
import json
import sys
from argparse import _ActionsContainer
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from builder.model.cells import FLAVOURS, GENERIC, RUNTIME, SELECTABLE, Selection
from builder.model.errors import BadInput, suggestion
from builder.model.exact_json import JsonObject, streamed
from builder.system.terminal import printable_lines

_Group = _ActionsContainer | None  # of options; None: the parser itself

EXIT_CODES = """\
exit codes:
  0  done                          3  the selection is empty
  1  a build or a check failed     4  this machine lacks something needed
  2  bad input or bad usage        5  refused: proof missing, wrong or too old
  130  interrupted: run the same command again to continue
"""


class BadUsage(SystemExit):
    """The end of the program by the parser; standard error has the text of `error`."""

    def __init__(self, error: BadInput) -> None:
        super().__init__(error.exit_code)
        self.error = error


class Parser(argparse.ArgumentParser):
    """A parser whose errors suggest a similar option, and point to the help.

    It has methods for options that several commands have; `to` is a group of the parser.
    `commands` are the names of all commands, which come first on a command line.
    """

    commands: Sequence[str] = ()
    takes_command = False  # `argv` of its options is what follows --

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        error = BadInput(message, hint=f"{self.prog} --help")
        self._print_message(printable_lines(f"{self.prog}: error: {error}\n"), sys.stderr)
        raise BadUsage(error)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown arguments, for a command and for the whole command line."""
        if self.takes_command:
            end = args.index("--") if "--" in args else len(args)
            self.set_defaults(argv=args[end + 1 :])
            args = args[:end]
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(self._left_over(rest, self._option_string_actions))
        return options, rest

    def _left_over(self, words: Sequence[str], known: Iterable[str]) -> str:
        text = f"unrecognized arguments: {' '.join(words)}"
        if named := [word for word in words if word in self.commands]:
            return f"{text}; the command comes first: build-images {named[0]} ..."
        for word in words:
            if guess := suggestion(word.partition("=")[0], known, "; did you mean {}?"):
                return text + guess
        return text

    def add_flag(self, name: str, text: str, *, to: _Group = None) -> None:
        """Add an option without a value."""
        (to or self).add_argument(name, action="store_true", help=text)

    def add_path(self, name: str, text: str, metavar: str = "FILE", *, to: _Group = None) -> None:
        """Add an option or an argument that is a path."""
        (to or self).add_argument(name, type=a_path, metavar=metavar, help=text)

    def add_text(self, name: str, text: str, metavar: str, *, to: _Group = None) -> None:
        """Add an option or an argument that must not be empty."""
        (to or self).add_argument(name, type=not_empty, metavar=metavar, help=text)

    def add_number(
        self,
        name: str,
        text: str,
        metavar: str = "N",
        *,
        default: int | None = None,
        to: _Group = None,
    ) -> None:
        """Add an option that is a number from 1."""
        (to or self).add_argument(
            name, type=positive_number, metavar=metavar, default=default, help=text
        )

    def add_list(
        self,
        name: str,
        text: str,
        metavar: str | None = None,
        *,
        choices: Sequence[str] | None = None,
        convert: Callable[[str], object] = str,
        to: _Group = None,
    ) -> None:
        """Add an option that may be repeated; `convert` reads each value."""
        (to or self).add_argument(
            name,
            action="append",
            default=[],
            type=convert,
            metavar=metavar,
            choices=choices,
            help=text,
        )

    def add_json(self, text: str = "as JSON", *, to: _Group = None) -> None:
        self.add_flag("--json", f"{text}; errors, too", to=to)

    def add_project(self) -> None:
        text = "the project: the folder with matrix.yaml (default: this one)"
        self.add_argument("--project", type=a_path, metavar="DIR", default=".", help=text)

    def add_selectors(self) -> None:
        """Add the options of `SelectorOptions`."""
        group = self.add_argument_group(
            "selectors (may be repeated; a version selects by prefix: 12 selects 12.4)"
        )
        examples = {
            "recipe": "hpc-base",
            "arch": "ppc64le (or ppc64el, amd64, ...)",
            "base": "debian13",
            "cuda": "12.4, or none",
            "mpi": "openmpi, openmpi5.0, or none",
        }
        for name in SELECTABLE:
            self.add_list(f"--{name}", f"such as {examples[name]}", name.upper(), to=group)
        self.add_list("--image", "by image identifier", "GLOB", to=group)
        text = "build images that run programs (the default), or that also compile them"
        self.add_list("--flavour", text, choices=FLAVOURS, to=group)
        text = "compile for one kind of processor: power9le, x86_64_v3, ... (default: generic)"
        self.add_list("--cpu-target", text, "TARGET", to=group)
        text = "select the whole matrix within the selectors, with any number of images"
        self.add_flag("--all", text, to=group)

    def add_progress(self) -> None:
        """Add the options of `ProgressOptions`."""
        level = self.add_mutually_exclusive_group()
        text = "print results and failures only"
        level.add_argument("-q", "--quiet", action="store_true", help=text)
        text = "print more: all reasons, all output of programs"
        level.add_argument("-v", "--verbose", action="store_true", help=text)

    def add_offline(self) -> None:
        self.add_flag(
            "--offline",
            "do not download sources; list those that the store lacks. Bases and packages in "
            "the home, for example from `load --home`, are used without the network",
        )

    def add_output(self, text: str, *, to: _Group = None) -> None:
        (to or self).add_argument("--output", "-o", type=a_path, metavar="DIR", help=text)

    def add_archive(self, text: str) -> None:
        self.add_argument(
            "--output", "-o", dest="archive", type=a_path, metavar="FILE", required=True, help=text
        )

    def add_image(self) -> None:
        """Add the options of `ImageOptions`."""
        text = "an image's folder, such as out/IDENTIFIER, or its identifier"
        self.add_path("path", text, "IMAGE")
        self.add_output("where the image's folder is, if its identifier is given (default: out)")

    def add_images_in(self, text: str) -> None:
        self.add_path("--images-in", f"{text} (default: PROJECT/out)", "DIR")

    def add_no_native_tools(self) -> None:
        self.add_flag(
            "--no-native-tools",
            "emulate every program of a foreign image, without this machine's native tools; "
            "stages built with native tools are built again only with --no-cache",
        )

    def add_max_index_age(self) -> None:
        self.add_argument(
            "--max-index-age",
            type=number_of_days,
            metavar="DAYS",
            help="if the mirror lacks parts of a package index, use the previous index if it is "
            "at most DAYS older (default: $BUILD_IMAGES_MAX_INDEX_AGE, or 14)",
        )

    def add_no_lint(self) -> None:
        self.add_flag("--no-lint", "do not check the generated specs for errors")

    def add_plain_http(self) -> None:
        text = "use HTTP for this registry (may be repeated; loopback needs no option)"
        self.add_list("--plain-http", text, "HOST")

    def add_source(self, text: str) -> None:
        metavar = "REGISTRY/NAMESPACE"
        self.add_argument("--from", dest="source", type=not_empty, metavar=metavar, help=text)

    def add_transfer(self, dry_run: str, *, jobs: int = 4) -> None:
        """Add the options of `TransferOptions`."""
        self.add_flag("--dry-run", dry_run)
        self.add_plain_http()
        text = "blobs and requests to work on at once (default: %(default)s)"
        self.add_number("--jobs", text, default=jobs)
        self.add_json("print what was done as JSON")


class Options(argparse.Namespace):
    """A parsed command line; `parser` is the command's."""

    command: str
    parser: Parser
    project: Path
    output: Path | None = None
    json = False
    is_answered = False  # standard output has a JSON document, which no second one may follow

    @property
    def out(self) -> Path:
        """The folder that a command writes to, or reads images from."""
        return self.output or self.project / "out"

    def image_folder(
        self, path: Path, *names: str, or_is: Callable[[Path], object] = lambda _: False
    ) -> Path:
        """Return an image's folder, by path or identifier: with one of these files, or `or_is`."""
        from builder.artifacts.manifests import find_image  # noqa: PLC0415 - few commands need it

        return find_image(
            path,
            self.out,
            lambda path: bool(any((path / name).exists() for name in names) or or_is(path)),
            "name an image's folder, such as out/IDENTIFIER, or its identifier",
        )

    def print_json(self, document: object) -> None:
        """Print the document of a command with --json, or the text of one."""
        self.is_answered = True  # also by a part of it, if the disk is full
        print(document if isinstance(document, str) else json.dumps(document, indent=1), flush=True)

    def stream(self, document: JsonObject) -> None:
        """Print the document of a command with --json, an entry of its lists after the other."""
        self.is_answered = True
        sys.stdout.writelines(streamed(document))

    def show(self, document: object, text: Callable[[], str]) -> None:
        """Print the result: with --json the document, else the text."""
        if self.json:
            self.print_json(document)
        else:
            print(text())


class ImageOptions(Options):
    """Options of commands about one image."""

    path: Path


class TransferOptions(Options):
    """Options of commands that transfer blobs."""

    dry_run: bool
    plain_http: Sequence[str]
    jobs: int
    json: bool


class ProgressOptions(Options):
    """Options that set how much a command prints."""

    verbose: bool
    quiet: bool

    @property
    def level(self) -> int:
        """0 with --quiet, 2 with --verbose, else 1."""
        return 2 if self.verbose else 0 if self.quiet else 1


class SelectorOptions(ProgressOptions):
    """Options that select images."""

    image: Sequence[str]
    flavour: Sequence[str]
    cpu_target: Sequence[str]
    all: bool

    @property
    def selection(self) -> Selection:
        """The selection, for the planner."""
        patterns = {name: tuple(getattr(self, name)) for name in SELECTABLE}
        return Selection(
            patterns={name: texts for name, texts in patterns.items() if texts},
            images=tuple(self.image),
            everything=self.all,
            flavours=distinct(self.flavour or [RUNTIME]),
            cpu_targets=distinct(self.cpu_target or [GENERIC]),
        )


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts in order, without duplicates."""
    return tuple(dict.fromkeys(texts))


# ---- Types of arguments ----


def a_path(text: str) -> Path:
    """Return the absolute path; refuse an empty text (from an unset variable)."""
    return Path(not_empty(text)).absolute()


def not_empty(text: str) -> str:
    """Refuse an empty argument, which would look like an omitted one."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def number_of_days(text: str) -> int:
    """Return a number of days from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number of days")
    return int(text)


def positive_number(text: str) -> int:
    """Return a number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)
