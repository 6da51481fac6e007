"""The parser of the command line: commands, options and their help."""

from __future__ import annotations

import argparse
import os

from builder import __version__
from builder.facts.runtimes import RUNTIMES
from builder.model import FLAVOURS, FORMATS, SELECTABLE

FILE_KINDS = ("recipe", "base", "matrix", "checks", "site", "host", "host-contract")
RESULT_KINDS = ("evidence",)
RUNNER_NAMES = ("buildah", "podman", "docker", "apptainer", "charliecloud")

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
  build-images gc                                what the store holds in vain
  build-images doctor                            what this machine can build, run and verify
  build-images check-host image.sif              whether an image runs on this machine

"""


REPRODUCE = """\
Build an image again and compare OCI layout and Charliecloud tarball with those in its folder.

It is built from the base that lies in the folder, from the specs that the project has for it and
from locked sources, without any layer of an earlier build, in a scratch place that is removed
afterwards; nothing in the folder changes. The exit code is 0 if both are the same byte for byte,
and 1 if not: then, for each layer that differs, the first path is named, and whether it is its
content, mode, mtime, owner, link or type that differs, or whether it is missing. Packages come
from the distribution's mirror of the day: versions that changed meanwhile are listed. With
--no-native-tools it also shows that native tools changed nothing in an image that was lent them.
"""


CHECK_HOST = """\
Say whether an image runs on this host, or on one of which a record was brought: yes, no or cannot
tell, rule by rule, each with the reason and the fix. Nothing is started: the image's host contract
is read from its labels, or from /opt/build-images/host-contract.json in it.

Architecture, processor, kernel, driver, GPUs and their compute capability all have to fit, one
container runtime has to start it, and the ranks of its MPI have to be launched in one way:
  in-container  by the launcher in the image, on one node
  hybrid        by the host's mpirun or srun, each rank in a container of its own
  bind          the same, with the host's MPI bound into the containers
Without --runtime, any that is there will do; without --launcher, any way. A fact that is needed and
not known makes no yes.
"""

CHECK_HOST_CODES = """\
exit codes:
  0  yes
  2  bad input or bad usage: no such image, a record or a contract with faults
  4  cannot tell: something that is needed is not known, or the image has no host contract
  5  no: refused, it must not run there

examples:
  build-images check-host out/IDENTIFIER
  build-images check-host image.sif --launcher hybrid --runtime apptainer
  build-images check-host --record > node.json            on a node of the site
  build-images check-host image.sif --host node.json      wherever the image is
"""


def make_parser() -> argparse.ArgumentParser:
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
    plan.add_argument(
        "--stages",
        action="store_true",
        help="show the stages of images, however many there are",
    )
    spec = _command(
        commands, "spec", "write Dockerfile and Singularity.def of each image", [selectors, common]
    )
    _output(spec, "where to write a folder for each image (default: PROJECT/out)")
    _no_lint(spec)
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
    verify.add_argument(
        "--runner",
        action="append",
        choices=RUNNER_NAMES,
        help="run the checks by this program alone (may be repeated; default: one a format)",
    )
    verify.add_argument("--json", action="store_true", help="print the manifest as JSON")
    _reproduce_command(commands, [common, progress])
    _doctor_command(commands, common)
    _check_host_command(commands)
    _gc_command(commands)
    _schema_command(commands)
    return parser


def _check_host_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "say whether an image runs on this host, without starting it"
    check = _command(commands, "check-host", about, [_common()])
    check.description, check.epilog = CHECK_HOST, CHECK_HOST_CODES
    check.add_argument(
        "path",
        metavar="IMAGE",
        nargs="?",
        help="an image's folder or identifier, an OCI layout, a SIF, a Charliecloud tarball or "
        "folder, or a host-contract.json",
    )
    _output(check, "where the image's folder is, if its identifier is given (default: out)")
    check.add_argument(
        "--host", metavar="FILE", help="check for the host of a record, as --record prints it"
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


def _doctor_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    about = "say what this machine can build, run and verify, or how its GPUs are"
    doctor = _command(commands, "doctor", about, [common])
    doctor.add_argument(
        "--gpu",
        action="store_true",
        help="the health of the driver and of each GPU; exit code 0 if they can be relied on, "
        "1 if not, 4 if there is none",
    )
    doctor.add_argument(
        "path",
        metavar="IMAGE",
        nargs="?",
        help="with --gpu: an image's folder, whose failed GPU checks are told apart",
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")


def _gc_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "show what nothing in the store refers to any more, and free it"
    gc = _command(commands, "gc", about, [_common()])
    gc.add_argument("--free", action="store_true", help="remove it (default: only show it)")
    gc.add_argument(
        "--unused-for",
        type=_days,
        default=7,
        metavar="DAYS",
        help="leave what was used since, which other projects may need (default: 7)",
    )
    gc.add_argument("--json", action="store_true", help="as JSON")


def _reproduce_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    parents: list[argparse.ArgumentParser],
) -> None:
    about = "build an image again, and say whether it comes out the same, byte for byte"
    reproduce = _command(commands, "reproduce", about, parents)
    reproduce.description = REPRODUCE
    reproduce.add_argument(
        "path", metavar="IMAGE", help="an image's folder, such as out/IDENTIFIER, or its identifier"
    )
    _output(reproduce, "where the image's folder is, if its identifier is given (default: out)")
    _no_native_tools(reproduce)
    _offline(reproduce)
    reproduce.add_argument("--json", action="store_true", help="print what was found as JSON")


def _schema_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "print the JSON Schema of a kind of input file, for editors, or of evidence"
    schema = _command(commands, "schema", about, [_common()])
    kinds = (*FILE_KINDS, *RESULT_KINDS)
    schema.add_argument(
        "kind",
        metavar="KIND",
        choices=kinds,
        help=f"{', '.join(kinds[:-1])} or {kinds[-1]}",
    )


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
    _no_native_tools(parser)
    parser.add_argument("--no-verify", action="store_true", help="build and pack only")
    _no_lint(parser)
    _offline(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, and do nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _output(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--output", "-o", metavar="DIR", help=text)


def _no_native_tools(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-native-tools",
        action="store_true",
        help="emulate all of a foreign image's programs, also where this machine has their twins; "
        "what was built with them is built again with --no-cache alone",
    )


def _no_lint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-lint", action="store_true", help="do not look for errors in what recipes became"
    )


def _days(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number of days")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)
