"""The command line: declared once, parsed into one frozen value."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder import __version__
from builder.model import FLAVOURS, FORMATS, GENERIC, RUNTIME, SELECTABLE, Selection

EXIT_CODES = """\
exit codes:
  0  done                          3  the selection is empty
  1  a build or a check failed     4  this machine lacks something needed
  2  bad input or bad usage        5  refused: proof missing, wrong or too old
  130  interrupted: the same command goes on from there
"""

DESCRIPTION = """\
Build container images for supercomputers: recipes declared once in YAML, times a matrix of
architecture x base x CUDA x MPI, as OCI image, Singularity image (SIF) and Charliecloud
tarball, each proven by tests inside the container.

Without a command, every selected image is compiled, built, packed and verified; without a
selector, the default selection of matrix.yaml is taken. An image that is done and unchanged
is not built again.
"""

EXAMPLES = """\
examples:
  build-images                                   the default selection
  build-images --arch ppc64le --mpi openmpi      every recipe and base, for POWER with Open MPI
  build-images --image 'python-mpi-*-x86_64'     by image identifier
  build-images plan --all                        what there is, and in which order it is built
  build-images explain --mpi mpich               why each cell is in or out
  build-images doctor                            what this machine can build, run and verify

"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the user asked for. `level` is 0 with --quiet, 2 with --verbose, else 1."""

    command: str
    selection: Selection
    project: Path
    out: Path
    level: int = 1
    json: bool = False
    engine: str = "buildah"
    jobs: int = 2
    formats: tuple[str, ...] = FORMATS
    refresh: bool = False
    cache: bool = True
    verify: bool = True
    dry_run: bool = False
    graph: bool = False
    path: Path | None = None
    offline: bool = False
    check: bool = False
    update: bool = False


def parse(argv: Sequence[str]) -> Options:
    """Parse a command line; argparse prints usage errors and exits with status 2."""
    given = _parser().parse_args(_with_command(argv))
    verbose, quiet = getattr(given, "verbose", False), getattr(given, "quiet", False)
    project = Path(given.project).absolute()
    output = getattr(given, "output", None)
    return Options(
        command=given.command,
        selection=_selection(given),
        project=project,
        out=Path(output).absolute() if output else project / "out",
        level=2 if verbose else 0 if quiet else 1,
        json=getattr(given, "json", False),
        engine=getattr(given, "engine", "buildah"),
        jobs=getattr(given, "jobs", 1),
        formats=_formats(getattr(given, "format", None)),
        refresh=getattr(given, "refresh", False),
        cache=not getattr(given, "no_cache", False),
        verify=not getattr(given, "no_verify", False),
        dry_run=getattr(given, "dry_run", False),
        graph=getattr(given, "graph", False),
        offline=getattr(given, "offline", False),
        check=getattr(given, "check", False),
        update=getattr(given, "update", False),
        path=Path(given.path).absolute() if getattr(given, "path", None) else None,
    )


COMMANDS = ("build", "plan", "spec", "lint", "explain", "lock", "fetch", "verify", "doctor")


def _with_command(argv: Sequence[str]) -> list[str]:
    """The main job has no name on the command line: put `build` where no command is."""
    words = list(argv)
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

        close = get_close_matches(words[0], COMMANDS, n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        _parser().error(f"unknown command {words[0]}; {guess}commands: {', '.join(COMMANDS)}")
    if words and (words[0] in COMMANDS or words[0] in {"-h", "--help", "--version"}):
        return words
    return ["build", *words]


def _selection(given: argparse.Namespace) -> Selection:
    patterns = {name: tuple(getattr(given, name, None) or ()) for name in SELECTABLE}
    return Selection(
        patterns={name: some for name, some in patterns.items() if some},
        images=tuple(getattr(given, "image", None) or ()),
        everything=getattr(given, "all", False),
        flavours=_distinct(getattr(given, "flavour", None) or [RUNTIME]),
        cpu_targets=_distinct(getattr(given, "cpu_target", None) or [GENERIC]),
    )


def _distinct(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(given))


def _formats(given: Sequence[str] | None) -> tuple[str, ...]:
    """The chosen formats in their usual order; the OCI layout is what the others are made of."""
    return tuple(name for name in FORMATS if name == "oci" or name in (given or FORMATS))


def _parser() -> argparse.ArgumentParser:
    common, selectors, progress = _common(), _selectors(), _progress()
    # The main job has no name, so its options are shown here; `_with_command` sees to it that
    # they are parsed by `build`.
    parser = argparse.ArgumentParser(
        prog="build-images",
        usage="build-images [COMMAND] [SELECTORS] [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES + EXIT_CODES,
        parents=[selectors, common, progress],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _build_options(parser)
    parser.add_argument("--version", action="version", version=f"build-images {__version__}")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    build = _command(
        commands,
        "build",
        "compile, build, pack and verify the selected images (the default)",
        [selectors, common, progress],
    )
    _build_options(build)
    plan = _command(
        commands, "plan", "show the selected images in build order", [selectors, common]
    )
    shape = plan.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="as JSON, with content keys")
    shape.add_argument("--graph", action="store_true", help="as a graph in Graphviz's language")
    spec = _command(
        commands, "spec", "write Dockerfile and Singularity.def of each image", [selectors, common]
    )
    _output(spec, "where to write a folder for each image (default: PROJECT/out)")
    lint = _command(
        commands, "lint", "look for faults in the specs of each image", [selectors, common]
    )
    lint.add_argument("--json", action="store_true", help="as JSON")
    lint.add_argument("--no-cache", action="store_true", help="look at unchanged specs again")
    explain = _command(commands, "explain", "say why each cell is in or out", [selectors, common])
    explain.add_argument("--json", action="store_true", help="as JSON")
    _source_commands(commands, [selectors, common, progress])
    verify = _command(
        commands, "verify", "prove again what an image's output folder holds", [common, progress]
    )
    verify.add_argument("path", metavar="PATH", help="an image's folder, such as out/IDENTIFIER")
    verify.add_argument("--json", action="store_true", help="print the manifest as JSON")
    doctor = _command(
        commands, "doctor", "say what this machine can build, run and verify", [common]
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _source_commands(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    parents: list[argparse.ArgumentParser],
) -> None:
    lock = _command(
        commands, "lock", "pin sources by checksum and base images by digest, in lock.yaml", parents
    )
    how = lock.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="only say whether it matches the recipes")
    how.add_argument(
        "--update", action="store_true", help="look up anew what is locked, and accept changes"
    )
    lock.add_argument("--json", action="store_true", help="print the lock as JSON")
    fetch = _command(commands, "fetch", "bring all locked sources into the local store", parents)
    _offline(fetch)
    fetch.add_argument("--json", action="store_true", help="print the files as JSON, by URL")


def _offline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--offline", action="store_true", help="fetch no source: what is not in the store is named"
    )


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    about: str,
    parents: list[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    usage = "build-images [SELECTORS] [OPTIONS]" if name == "build" else None
    return commands.add_parser(
        name,
        help=about,
        description=about[:1].upper() + about[1:] + ".",
        usage=usage,
        epilog=EXIT_CODES,
        parents=parents,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _common() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--project",
        metavar="DIR",
        default=".",
        help="the folder that holds matrix.yaml, recipes/ and base-images/ (default: this one)",
    )
    return parser


def _selectors() -> argparse.ArgumentParser:
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
        "--all", action="store_true", help="the whole matrix, but for what selectors leave out"
    )
    return parser


def _progress() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    level = parser.add_mutually_exclusive_group()
    level.add_argument("-q", "--quiet", action="store_true", help="tell only of failures")
    level.add_argument("-v", "--verbose", action="store_true", help="show all subprocess output")
    return parser


def _build_options(parser: argparse.ArgumentParser) -> None:
    _output(parser, "where images and report go (default: PROJECT/out)")
    parser.add_argument(
        "--engine", choices=("buildah", "docker"), default="buildah", help="default: buildah"
    )
    parser.add_argument(
        "--format",
        action="append",
        choices=FORMATS,
        help="pack only this one beside the OCI image (may be repeated; default: all)",
    )
    parser.add_argument(
        "--jobs",
        type=_positive,
        default=min(4, os.cpu_count() or 1),
        metavar="N",
        help="images worked on at once (default: the number of cores, at most 4)",
    )
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="make everything anew, bases included, with today's packages",
    )
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="run every build step again, on the bases that are there",
    )
    parser.add_argument("--no-verify", action="store_true", help="build and pack only")
    _offline(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and do nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _output(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--output", "-o", metavar="DIR", help=text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)
