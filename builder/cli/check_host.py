"""`build-images check-host`: check whether an image runs on a host, before it is started there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.artifacts.manifests import find_image
from builder.cli.options import Options, Parser, a_path, distinct
from builder.host.local_host import this_host
from builder.host.records import Host, as_record, read_record
from builder.host.rules import judge
from builder.host.runtimes import RUNTIME_NAMES
from builder.host.verdict import NO, UNKNOWN, YES, as_json, as_text
from builder.load.facts import known_facts
from builder.model.contract import FILE
from builder.model.errors import BadInput, MissingPrerequisite, Refused
from builder.model.manifest import FILES
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.terminal import in_colour
from builder.verify.image_contract import contract_in

_DESCRIPTION = """\
Check whether an image runs on this host, or on the host of a record. The answer for each rule is
yes, no or cannot tell, with the reason and the fix. The image is not started: check-host reads its
host contract from its labels, or from /opt/build-images/host-contract.json in it.

Architecture, processor, kernel, driver, GPUs and their compute capability must all fit, a container
runtime must be able to start the image, and one of these ways must launch the ranks of its MPI:
  in-container  by the launcher in the image, on one node
  hybrid        by the host's mpirun or srun, each rank in a container of its own
  bind          the same, with the host's MPI bound into the containers
Without --runtime, any installed runtime is enough; without --launcher, any way. If a required fact
is not known, the answer is never yes.
"""
_EXIT_CODES = """\
exit codes:
  0  yes
  2  bad input or bad usage: no such image, a record or a contract with faults
  4  cannot tell: a required fact is not known, or the image has no host contract
  5  no: the image does not run there

examples:
  build-images check-host out/IDENTIFIER
  build-images check-host image.sif --launcher hybrid --runtime apptainer
  build-images check-host --record > node.json            on a node of the site
  build-images check-host image.sif --host node.json      wherever the image is
"""
_EXIT_CODE = {YES: 0, NO: Refused.exit_code, UNKNOWN: MissingPrerequisite.exit_code}
_HINT = "name an image's folder, such as out/IDENTIFIER, a SIF, or another form of it"


class CheckHostOptions(Options):
    path: Path | None
    host: Path | None
    record: bool
    runtime: Sequence[str]
    launcher: Sequence[str]
    emulated: bool
    json: bool


def declare(parser: Parser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXIT_CODES
    text = (
        "an image's folder or identifier, an OCI layout, a SIF, a Charliecloud tarball or "
        "folder, or a host-contract.json"
    )
    parser.add_argument("path", type=a_path, metavar="IMAGE", nargs="?", help=text)
    parser.add_output("folder with the image's folder, for an identifier (default: out)")
    parser.add_path("--host", "check for the host of this record (made with --record)")
    parser.add_flag("--record", "print this host as a record (JSON), and check nothing")
    text = "a container runtime that may start it (may be repeated: one must work)"
    parser.add_list("--runtime", text, choices=RUNTIME_NAMES)
    text = "a way to launch the ranks of its MPI (may be repeated: one must work)"
    parser.add_list("--launcher", text, choices=("in-container", "hybrid", "bind"))
    text = "allow programs of another architecture under QEMU; the answer is never native"
    parser.add_flag("--emulated", text)
    parser.add_json()


def run(options: CheckHostOptions) -> int:
    """Print the answer: yes, no or cannot tell; or, with --record, this host's record."""
    processes = Processes()
    if options.record:
        if options.path or options.host:
            raise BadInput("--record prints this host: IMAGE and --host cannot be used with it")
        print(as_record(_this_host(processes)), end="")
        return 0
    if options.path is None:
        raise BadInput("no image: use check-host IMAGE, or check-host --record for this host")
    known = known_facts(options.project, "nothing was checked")
    image = find_image(options.path, options.out, Path.exists, _HINT)
    contract = contract_in(_form(image), processes)
    host = read_record(options.host) if options.host else _this_host(processes)
    verdict = judge(
        contract,
        host,
        known,
        runtimes=distinct(options.runtime),
        launchers=distinct(options.launcher),
        emulated=options.emulated,
    )
    options.show(as_json(verdict), lambda: as_text(verdict, colour=in_colour()))
    return _EXIT_CODE[verdict.answer]


def _this_host(processes: Processes) -> Host:
    return this_host(processes, search_path=Home.of_environment().search_path())


def _form(image: Path) -> Path:
    """Return one form of an image: its output folder has several with the same contract."""
    files = (image / name for name in (*FILES.values(), FILE))
    return next((file for file in files if file.exists()), image)
