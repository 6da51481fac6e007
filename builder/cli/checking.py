"""`build-images check-host`: whether an image runs on a host, before it is started there."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from builder.build.workspace import FILES
from builder.facts import Facts
from builder.host import (
    NO,
    UNKNOWN,
    YES,
    Host,
    as_json,
    as_record,
    as_text,
    contract_in,
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

if TYPE_CHECKING:
    from builder.cli.options import Options

_EXIT_CODES = {
    YES: 0,
    NO: Refused.exit_code,
    UNKNOWN: MissingPrerequisite.exit_code,
}


def check_host(options: Options) -> int:
    """Say yes, no or cannot tell; or, with --record, what this host is."""
    processes = Processes()
    if options.record:
        if options.path or options.host:
            raise BadInput("--record prints this host: it takes no IMAGE and no --host")
        print(as_record(_this_host(processes)), end="")
        return 0
    if options.path is None:
        raise BadInput("which image? check-host IMAGE; or check-host --record, for this host")
    known = _facts(options)
    contract = _contract(options, processes)
    host = read_record(options.host) if options.host else _this_host(processes)
    verdict = judge(
        contract,
        host,
        known,
        runtimes=options.runtimes,
        launchers=options.launchers,
        emulated=options.emulated,
    )
    if options.json:
        print(as_json(verdict))
    else:
        print(as_text(verdict, colour=in_colour()))
    return _EXIT_CODES[verdict.answer]


def _this_host(processes: Processes) -> Host:
    return this_host(processes, search_path=Home.of_environment().search_path())


def _facts(options: Options) -> Facts:
    """The tables of facts, with the rows of a project if there is one here; a site needs none."""
    faults = Faults()
    known = read_facts(options.project, faults)
    if faults.found:
        raise BadInput.of(faults.found, "nothing was checked")
    return known


def _contract(options: Options, processes: Processes) -> HostContract:
    assert options.path is not None
    for image in (options.path, options.out / options.path.name):
        if image.exists():
            return contract_in(_form(image), processes)
    known = sorted(one.name for one in options.out.glob("*") if _forms(one))
    close = get_close_matches(options.path.name, known, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    raise BadInput(
        f"{options.path.name}: no such file or folder, and no image of that name in {options.out}",
        hint=f"{guess}name an image's folder, such as out/IDENTIFIER, a SIF, or another form of it",
    )


def _form(image: Path) -> Path:
    """An image's output folder holds it in several forms, which agree; the first is read."""
    return next(iter(_forms(image)), image)


def _forms(folder: Path) -> list[Path]:
    files = [folder / name for name in (*FILES.values(), FILE)]
    return [file for file in files if file.exists()]
