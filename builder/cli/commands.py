"""The commands, and the module of each: `builder.cli.NAME` is imported when NAME is run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, cast, get_type_hints

from builder import __version__
from builder.cli.options import EXIT_CODES, Options, Parser, ProgressOptions, SelectorOptions
from builder.model.architectures import CPU_TARGETS
from builder.model.cells import GENERIC, SELECTABLE
from builder.model.errors import BuildImagesError, suggestion
from builder.model.manifest import LOG, MANIFEST

DEFAULT = "build"
ABOUT = {
    "build": "compile, build, pack and verify the selected images (the default)",
    "plan": "show the selected images in build order",
    "spec": "write Dockerfile and Singularity.def of each image",
    "lint": "look for faults in the specs of each image",
    "rehearse": "test each image as far as possible without building it",
    "explain": "show why each cell of the matrix is included or excluded",
    "lock": "pin sources by checksum and base images by digest, in lock.yaml",
    "fetch": "download all locked sources into the local store",
    "logs": "print the log of an image's build, or the output of a check",
    "shell": "open a shell in a built image, or in the stage that failed",
    "run": "run a program in a built image, and measure it",
    "verify": "verify built or pulled images again",
    "kit": "write an image and its checks into one file, to prove it on another machine",
    "reproduce": "build an image again, and check that it is identical, byte for byte",
    "diff": "compare two images, or an image with the build before it",
    "publish": "push verified images to a registry",
    "bundle": "write verified images into an archive",
    "load": "import images from an archive, if they are verified",
    "doctor": "show what this machine can build, run and verify, and whether its GPUs are healthy",
    "init": "make a project of your own, with a recipe and a check, in a new folder",
    "setup": "install the tools for building images: the user's or the administrator's part",
    "check-host": "check whether an image runs on this host, without starting it",
    "gc": "show or remove unused parts of the store",
    "keys": "create a key pair for signing images",
    "pull": "pull an image from a registry, if it is verified",
    "policy": "test a policy on recorded cases",
    "blocks": "describe the blocks of recipes and their arguments, with examples",
    "schema": "print the JSON Schema of an input file (for editors) or of a result",
    "site-files": "write the files that a site needs to run the images",
    "ci": "print a pipeline for the images, for a CI system",
    "catalog": "write a web site of the images that are built",
    "workers": "show the workers of a scheduler (see --on), or print a script that adds some",
}
DESCRIPTION = """\
Build container images for supercomputers: recipes in YAML, for a matrix of architecture x
base x CUDA x MPI, as OCI image, Singularity image (SIF) and Charliecloud tarball, each
verified by tests inside the container.

Without a command, every selected image is compiled, built, packed and verified; without a
selector, the default selection of matrix.yaml is used. An image that is done and unchanged
is not built again.
"""
EXAMPLES = """\
examples:
  build-images                                   the default selection
  build-images --arch ppc64le --mpi openmpi      every recipe and base, for POWER with Open MPI
  build-images --image 'python-mpi-*-x86_64'     by image identifier
  build-images plan --all                        all images, in the order of the build
  build-images explain --mpi mpich               why each cell is included or excluded
  build-images gc                                unused parts of the store
  build-images init climate                      a project of your own, in the folder climate
  build-images doctor                            what this machine can build, run and verify
  build-images publish --to quay.io/site         verified images, with evidence, to a registry
  build-images bundle --output site.tar          the same in one file, for a site without network
  build-images check-host image.sif              whether an image runs on this machine
  build-images verify DIR --launcher srun        whether Slurm starts the ranks of an image

"""


class Command(Protocol):
    """The module of a command; `run` takes an object of its class of options."""

    @staticmethod
    def declare(parser: Parser) -> None:
        """Add the command's own options, its description and its examples."""

    @staticmethod
    def run(options: Any) -> int:
        """Run the command; return the exit code."""


def command_of(name: str) -> Command:
    """Import the module of a command."""
    return cast("Command", import_module(f"builder.cli.{name.replace('-', '_')}"))


def options_of(command: Command) -> Options:
    """Return an empty object of a command's options, to parse a command line into."""
    options: Options = get_type_hints(command.run)["options"]()
    return options


def parse(argv: Sequence[str]) -> Options:
    """Parse a command line; argparse prints usage errors and exits with status 2."""
    words = _with_command(argv)
    if words[0] not in ABOUT:
        make_parser(declared=[], is_help=words[0] != "--version").parse_args(words)  # and exit
    options = options_of(command_of(words[0]))
    make_parser(declared=words[:1]).parse_args(words, options)
    return options


def _with_command(argv: Sequence[str]) -> list[str]:
    """Insert the name of the main job if the command line names no command."""
    words = list(argv)
    if words and not words[0].startswith("-") and words[0] not in ABOUT:
        guess = suggestion(words[0], ABOUT)
        text = f"unknown command: {words[0]}; {guess}commands: {', '.join(ABOUT)}"
        make_parser(declared=[]).error(text)
    before = 2 if words[:1] == ["--project"] else "".join(words[:1]).startswith("--project=")
    if before and words[before:] and words[before] in ABOUT:
        words.insert(0, words.pop(before))
    if words and (words[0] in ABOUT or words[0] in {"-h", "--help", "--version"}):
        return words
    return [DEFAULT, *words]


def make_parser(declared: Sequence[str] = tuple(ABOUT), *, is_help: bool = False) -> Parser:
    """Make the parser of the whole line, with the options of the commands in `declared`.

    The main job has no name on the command line, so its options are part of the general help.
    """
    parser = Parser(
        prog="build-images",
        usage="build-images [COMMAND] [SELECTORS] [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.commands = tuple(ABOUT)
    if is_help:
        _declare(DEFAULT, parser)
    parser.add_argument("--version", action="version", version=f"build-images {__version__}")
    commands = parser.add_subparsers(
        prog="build-images", dest="command", title="commands", metavar="COMMAND"
    )
    for name, about in ABOUT.items():
        subparser: Parser = commands.add_parser(
            name,
            help=about,
            description=about[:1].upper() + about[1:] + ".",
            usage="build-images [SELECTORS] [OPTIONS]" if name == DEFAULT else None,
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.commands = tuple(ABOUT)
        subparser.set_defaults(parser=subparser)
        if name in declared:
            _declare(name, subparser)
    return parser


def _declare(name: str, parser: Parser) -> None:
    """Add a command's options: first those that follow from the class of its options."""
    command = command_of(name)
    options = options_of(command)
    if isinstance(options, SelectorOptions):
        parser.add_selectors()
    parser.add_project()
    if isinstance(options, ProgressOptions):
        parser.add_progress()
    command.declare(parser)


# ---- Completion: a shell runs the program with _ARGCOMPLETE, and reads from descriptor 8 ----


def complete() -> None:
    """Print what completes the command line of a shell, and end the program.

    Only the modules of one command are imported, and the project is read for its values alone.
    """
    import argcomplete  # noqa: PLC0415 - only a shell needs it
    from argcomplete.lexers import split_line  # noqa: PLC0415

    line, point = os.environ.get("COMP_LINE", ""), int(os.environ.get("COMP_POINT", "0"))
    words = split_line(line, point)[3][1:]
    named = next((word for word in words if word in ABOUT), "")
    parser = make_parser([named] if named else [], is_help=not named)
    for each in _parsers(parser):
        for action in each._actions:
            if action.dest in _COMPLETED and not action.choices:
                action.completer = _COMPLETED[action.dest]  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options="long")


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def _values(name: str) -> Callable[..., Iterable[str]]:
    """Return a completer with the values of a selector, or the names of checks or pools."""

    def values(*, parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
        from builder.load.project import load_project  # noqa: PLC0415 - slow, for values alone

        try:
            project = load_project(Path(getattr(parsed_args, "project", None) or "."))
        except BuildImagesError:
            return ()
        named = {"recipe": project.recipes, "check": project.checks, "pool": project.site.pools}
        return named[name] if name in named else project.matrix.axes.get(name, ())

    return values


def _identifiers(*, parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    """Return the identifiers of images in the output folder."""
    project = Path(getattr(parsed_args, "project", None) or ".")
    out = getattr(parsed_args, "output", None) or project / "out"
    return sorted({path.parent.name for name in (MANIFEST, LOG) for path in out.glob(f"*/{name}")})


def _blocks(**_: object) -> Iterable[str]:
    from builder.compile.spec.catalogue import hpccm_blocks, notes_on  # noqa: PLC0415
    from builder.load.recipes import TOOLKIT_ARGUMENTS  # noqa: PLC0415

    return (*TOOLKIT_ARGUMENTS, *(name for name in hpccm_blocks() if not notes_on(name).refused))


_COMPLETED: Mapping[str, Callable[..., Iterable[str]]] = {
    **{name: _values(name) for name in (*SELECTABLE, "check", "pool")},
    **dict.fromkeys(["path", "other", "image"], _identifiers),
    "cpu_target": lambda **_: [GENERIC, *chain(*CPU_TARGETS.values())],
    "block": _blocks,
}
