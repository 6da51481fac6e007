"""`build-images check-host`: whether an image runs on a host, before it is started there."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from builder.build.workspace import FILES
from builder.cli.options import Options, Parser, a_path, add_output, add_project, distinct
from builder.facts import Facts
from builder.facts.runtimes import RUNTIMES
from builder.host import (
    NO,
    UNKNOWN,
    YES,
    Host,
    as_json,
    as_record,
    as_text,
    judge,
    read_record,
    this_host,
)
from builder.load.facts import read_facts
from builder.load.faults import Faults
from builder.model.contract import FILE, HostContract
from builder.model.errors import BadInput, MissingPrerequisite, Refused
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.terminal import in_colour
from builder.verify.image_contract import contract_in

_DESCRIPTION = """\
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
_EXIT_CODES = """\
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
_EXIT_CODE = {
    YES: 0,
    NO: Refused.exit_code,
    UNKNOWN: MissingPrerequisite.exit_code,
}


class CheckHostOptions(Options):
    """The options of `check-host`."""

    path: Path | None
    host: Path | None
    record: bool
    runtime: Sequence[str]
    launcher: Sequence[str]
    emulated: bool
    json: bool


def declare(parser: Parser) -> None:
    """Add the options of `check-host`."""
    parser.description, parser.epilog = _DESCRIPTION, _EXIT_CODES
    add_project(parser)
    parser.add_argument(
        "path",
        type=a_path,
        metavar="IMAGE",
        nargs="?",
        help="an image's folder or identifier, an OCI layout, a SIF, a Charliecloud tarball or "
        "folder, or a host-contract.json",
    )
    add_output(parser, "where the image's folder is, if its identifier is given (default: out)")
    parser.add_argument(
        "--host",
        type=a_path,
        metavar="FILE",
        help="check for the host of a record, as --record prints it",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="print this host as a record (JSON), and check nothing",
    )
    parser.add_argument(
        "--runtime",
        action="append",
        default=[],
        choices=tuple(RUNTIMES),
        help="the container runtime that is to start it (may be repeated: one of them)",
    )
    parser.add_argument(
        "--launcher",
        action="append",
        default=[],
        choices=("in-container", "hybrid", "bind"),
        help="how the ranks of its MPI are to be launched (may be repeated: one of them)",
    )
    parser.add_argument(
        "--emulated",
        action="store_true",
        help="let programs of another architecture run under QEMU; it is said, and is never native",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: CheckHostOptions) -> int:
    """Say yes, no or cannot tell; or, with --record, what this host is."""
    processes = Processes()
    if options.record:
        if options.path or options.host:
            raise BadInput("--record prints this host: it takes no IMAGE and no --host")
        print(as_record(_this_host(processes)), end="")
        return 0
    if options.path is None:
        raise BadInput("which image? check-host IMAGE; or check-host --record, for this host")
    known = _facts(options.project)
    contract = _contract(options.path, options.out, processes)
    host = read_record(options.host) if options.host else _this_host(processes)
    verdict = judge(
        contract,
        host,
        known,
        runtimes=distinct(options.runtime),
        launchers=distinct(options.launcher),
        emulated=options.emulated,
    )
    if options.json:
        print(as_json(verdict))
    else:
        print(as_text(verdict, colour=in_colour()))
    return _EXIT_CODE[verdict.answer]


def _this_host(processes: Processes) -> Host:
    return this_host(processes, search_path=Home.of_environment().search_path())


def _facts(project: Path) -> Facts:
    """The tables of facts, with the rows of a project if there is one here; a site needs none."""
    faults = Faults()
    known = read_facts(project, faults)
    if faults.found:
        raise BadInput.of(faults.found, "nothing was checked")
    return known


def _contract(path: Path, out: Path, processes: Processes) -> HostContract:
    for image in (path, out / path.name):
        if image.exists():
            return contract_in(_form(image), processes)
    known = sorted(folder.name for folder in out.glob("*") if _forms(folder))
    close = get_close_matches(path.name, known, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    raise BadInput(
        f"{path.name}: no such file or folder, and no image of that name in {out}",
        hint=f"{guess}name an image's folder, such as out/IDENTIFIER, a SIF, or another form of it",
    )


def _form(image: Path) -> Path:
    """An image's output folder holds it in several forms, which agree; the first is read."""
    return next(iter(_forms(image)), image)


def _forms(folder: Path) -> list[Path]:
    files = [folder / name for name in (*FILES.values(), FILE)]
    return [file for file in files if file.exists()]
