"""The parser of the command line: commands, options and their help."""

from __future__ import annotations

import argparse
import os

from builder import __version__
from builder.cli import (
    bundle_options,
    keys_options,
    publishing_options,
    pull_options,
    setup_options,
)
from builder.cli.arguments import (
    Commands,
    Parser,
    a_path,
    command,
    common_options,
    max_index_age,
    no_lint,
    no_native_tools,
    number_of_days,
    offline,
    output,
    positive_number,
    progress_options,
    selectors_options,
)
from builder.cli.help import (
    CHECK_HOST,
    CHECK_HOST_CODES,
    DESCRIPTION,
    EXAMPLES,
    EXIT_CODES,
    REPRODUCE,
)
from builder.cli.site_options import add_site_commands
from builder.cli.verify_options import add_verify_options
from builder.facts.runtimes import RUNTIMES
from builder.model.names import FORMATS

FILE_KINDS = (
    *("recipe", "base", "matrix", "checks", "site"),
    *("host", "host-contract", "policy", "policy-case"),
)
RESULT_KINDS = ("evidence",)


def make_parser() -> argparse.ArgumentParser:
    common, selectors, progress = common_options(), selectors_options(), progress_options()
    # The main job has no name, so its options are shown here; `_with_command` sees to it that
    # they are parsed by `build`.
    parser = Parser(
        prog="build-images",
        usage="build-images [COMMAND] [SELECTORS] [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES + EXIT_CODES,
        parents=[selectors, common, progress],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _build_options(parser)
    parser.add_argument("--version", action="version", version=f"build-images {__version__}")
    commands = parser.add_subparsers(
        prog="build-images", dest="command", title="commands", metavar="COMMAND"
    )
    build = command(
        commands,
        "build",
        "compile, build, pack and verify the selected images (the default)",
        [selectors, common, progress],
    )
    _build_options(build)
    plan = command(commands, "plan", "show the selected images in build order", [selectors, common])
    shape = plan.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="as JSON, with content keys")
    shape.add_argument("--graph", action="store_true", help="as a graph in Graphviz's language")
    plan.add_argument(
        "--stages",
        action="store_true",
        help="show the stages of images, however many there are",
    )
    spec = command(
        commands, "spec", "write Dockerfile and Singularity.def of each image", [selectors, common]
    )
    output(spec, "where to write a folder for each image (default: PROJECT/out)")
    no_lint(spec)
    lint = command(
        commands, "lint", "look for faults in the specs of each image", [selectors, common]
    )
    lint.add_argument("--json", action="store_true", help="as JSON")
    lint.add_argument("--no-cache", action="store_true", help="look at unchanged specs again")
    _rehearse_command(commands, [selectors, common, progress])
    explain = command(commands, "explain", "say why each cell is in or out", [selectors, common])
    explain.add_argument("--json", action="store_true", help="as JSON")
    _source_commands(commands, [selectors, common, progress])
    verify = command(commands, "verify", "prove again what was built or pulled", [common, progress])
    add_verify_options(verify)
    _reproduce_command(commands, [common, progress])
    publishing_options.declare(commands)
    bundle_options.declare(commands)
    _doctor_command(commands, common)
    setup_options.declare(commands)
    _check_host_command(commands)
    _gc_command(commands)
    keys_options.declare(commands)
    pull_options.declare(commands)
    _schema_command(commands)
    add_site_commands(commands, selectors, common)
    return parser


def _check_host_command(commands: Commands) -> None:
    about = "say whether an image runs on this host, without starting it"
    check = command(commands, "check-host", about, [common_options()])
    check.description, check.epilog = CHECK_HOST, CHECK_HOST_CODES
    check.add_argument(
        "path",
        type=a_path,
        metavar="IMAGE",
        nargs="?",
        help="an image's folder or identifier, an OCI layout, a SIF, a Charliecloud tarball or "
        "folder, or a host-contract.json",
    )
    output(check, "where the image's folder is, if its identifier is given (default: out)")
    check.add_argument(
        "--host",
        type=a_path,
        metavar="FILE",
        help="check for the host of a record, as --record prints it",
    )
    check.add_argument(
        "--record",
        action="store_true",
        help="print this host as a record (JSON), and check nothing",
    )
    check.add_argument(
        "--runtime",
        action="append",
        choices=tuple(RUNTIMES),
        help="the container runtime that is to start it (may be repeated: one of them)",
    )
    check.add_argument(
        "--launcher",
        action="append",
        choices=("in-container", "hybrid", "bind"),
        help="how the ranks of its MPI are to be launched (may be repeated: one of them)",
    )
    check.add_argument(
        "--emulated",
        action="store_true",
        help="let programs of another architecture run under QEMU; it is said, and is never native",
    )
    check.add_argument("--json", action="store_true", help="as JSON")


def _doctor_command(commands: Commands, common: argparse.ArgumentParser) -> None:
    about = "say what this machine can build, run and verify, or how its GPUs are"
    doctor = command(commands, "doctor", about, [common])
    doctor.add_argument(
        "--gpu",
        action="store_true",
        help="the health of the driver and of each GPU; exit code 0 if they can be relied on, "
        "1 if not, 4 if there is none",
    )
    doctor.add_argument(
        "path",
        type=a_path,
        metavar="IMAGE",
        nargs="?",
        help="with --gpu: an image's folder, whose failed GPU checks are told apart",
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")


def _gc_command(commands: Commands) -> None:
    about = "show what nothing in the store refers to any more, and free it"
    gc = command(commands, "gc", about, [common_options()])
    gc.add_argument("--free", action="store_true", help="remove it (default: only show it)")
    gc.add_argument(
        "--unused-for",
        type=number_of_days,
        default=7,
        metavar="DAYS",
        help="leave what was used since, which other projects may need (default: 7)",
    )
    gc.add_argument(
        "--layers",
        action="store_true",
        help="all layers of builds, too, which later builds then make again",
    )
    gc.add_argument("--json", action="store_true", help="as JSON")


def _rehearse_command(commands: Commands, parents: list[argparse.ArgumentParser]) -> None:
    about = "try all that can be tried of each image without building it"
    rehearse = command(commands, "rehearse", about, parents)
    rehearse.add_argument(
        "--clones",
        action="append",
        type=a_path,
        metavar="DIR",
        help="a folder with copies of Git repositories, as OWNER/NAME.git (may be repeated)",
    )
    rehearse.add_argument(
        "--steps",
        action="store_true",
        help="run the build steps, too, on a base of Debian in place of Ubuntu's; takes minutes",
    )
    rehearse.add_argument("--json", action="store_true", help="as JSON, with what passed")


def _reproduce_command(
    commands: Commands,
    parents: list[argparse.ArgumentParser],
) -> None:
    about = "build an image again, and say whether it comes out the same, byte for byte"
    reproduce = command(commands, "reproduce", about, parents)
    reproduce.description = REPRODUCE
    reproduce.add_argument(
        "path",
        type=a_path,
        metavar="IMAGE",
        help="an image's folder, such as out/IDENTIFIER, or its identifier",
    )
    output(reproduce, "where the image's folder is, if its identifier is given (default: out)")
    no_native_tools(reproduce)
    max_index_age(reproduce)
    offline(reproduce)
    reproduce.add_argument("--json", action="store_true", help="print what was found as JSON")


def _schema_command(commands: Commands) -> None:
    about = "print the JSON Schema of a kind of input file, for editors, or of evidence"
    schema = command(commands, "schema", about, [common_options()])
    kinds = (*FILE_KINDS, *RESULT_KINDS)
    schema.add_argument(
        "kind",
        metavar="KIND",
        choices=kinds,
        help=f"{', '.join(kinds[:-1])} or {kinds[-1]}",
    )


def _source_commands(
    commands: Commands,
    parents: list[argparse.ArgumentParser],
) -> None:
    lock = command(
        commands, "lock", "pin sources by checksum and base images by digest, in lock.yaml", parents
    )
    how = lock.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="only say whether it matches the recipes")
    how.add_argument(
        "--update", action="store_true", help="look up anew what is locked, and accept changes"
    )
    lock.add_argument("--json", action="store_true", help="print the lock as JSON")
    fetch = command(commands, "fetch", "bring all locked sources into the local store", parents)
    offline(fetch)
    fetch.add_argument("--json", action="store_true", help="print the files as JSON, by URL")


def _build_options(parser: argparse.ArgumentParser) -> None:
    output(parser, "where images and report go (default: PROJECT/out)")
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
        type=positive_number,
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
    no_native_tools(parser)
    max_index_age(parser)
    parser.add_argument("--no-verify", action="store_true", help="build and pack only")
    no_lint(parser)
    offline(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and do nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
