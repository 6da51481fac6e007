"""`build-images workers`: the batch scripts that add workers to a scheduler."""

from __future__ import annotations

from pathlib import Path

from builder.cli.options import Options, Parser
from builder.load.document import Faults
from builder.load.site import SITE, read_site
from builder.model import TlsFiles
from builder.model.errors import BadInput
from builder.verify.cluster.slurm import Scheduler, script_of

_ADDRESS = "SCHEDULER"  # to replace in a script


class WorkersOptions(Options):
    """The options of `workers`."""

    action: str
    pool: str
    scheduler: str


def declare(parser: Parser) -> None:
    """Add the options of `workers`."""
    parser.add_argument(
        "action", choices=["script"], help="script: print the batch script of a pool, for sbatch"
    )
    parser.add_argument("--pool", required=True, metavar="NAME", help="a pool of site.yaml")
    parser.add_argument(
        "--scheduler",
        default=_ADDRESS,
        metavar="ADDRESS",
        help="the address of the Dask scheduler, such as tcp://login1:8786",
    )


def run(options: WorkersOptions) -> int:
    """Print the batch script of a pool."""
    faults = Faults()
    site = read_site(options.project, faults)
    if faults.found:
        raise BadInput.of(faults.found, "no script was printed")
    if options.pool not in site.pools:
        known = ", ".join(site.pools) or "none"
        raise BadInput(
            f"{SITE} has no pool {options.pool}; pools: {known}", hint="docs/scale-out.md"
        )
    tls: TlsFiles | None = site.security
    scheduler = Scheduler(address=options.scheduler, tls=tls, folder=Path())
    print(script_of(options.pool, site.pools[options.pool], scheduler), end="")
    return 0
