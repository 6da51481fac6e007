"""`build-images workers`: the workers of a scheduler, and the batch scripts that add some."""

from __future__ import annotations

from pathlib import Path

from builder.cli.options import Options, Parser
from builder.load.document import Faults
from builder.load.site import SITE_FILE, read_site
from builder.model import Site
from builder.model.errors import BadInput
from builder.verify.cluster.connection import Scheduler
from builder.verify.cluster.run import listed_workers, script_of, workers_text

_ADDRESS = "SCHEDULER"  # to replace in a script


class WorkersOptions(Options):
    action: str
    pool: str
    scheduler: str


def declare(parser: Parser) -> None:
    text = (
        "list: show the workers of a scheduler, and which of them share stages; "
        "script: print the batch script of a pool, for sbatch"
    )
    parser.add_argument("action", choices=["list", "script"], help=text)
    parser.add_argument("--pool", default="", metavar="NAME", help="script: a pool of site.yaml")
    text = "the address of the Dask scheduler, such as tcp://login1:8786"
    parser.add_argument("--scheduler", default="", metavar="ADDRESS", help=text)


def run(options: WorkersOptions) -> int:
    """Print the workers of a scheduler, or the batch script of a pool."""
    faults = Faults()
    site = read_site(options.project, faults)
    if faults.found:
        raise BadInput.of(faults.found, "nothing was printed")
    if options.action == "script":
        print(_script(options, site), end="")
        return 0
    if not options.scheduler:
        options.parser.error("list: --scheduler is required")
    print(workers_text(listed_workers(options.scheduler, site)))
    return 0


def _script(options: WorkersOptions, site: Site) -> str:
    if options.pool not in site.pools:
        known = ", ".join(site.pools) or "none"
        problem = f"has no pool {options.pool}" if options.pool else "script: --pool is required"
        raise BadInput(f"{SITE_FILE}: {problem}; pools: {known}", hint="docs/scale-out.md")
    scheduler = Scheduler(address=options.scheduler or _ADDRESS, tls=site.security, folder=Path())
    return script_of(options.pool, site.pools[options.pool], scheduler)
