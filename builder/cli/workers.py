"""`build-images workers`: the workers of a scheduler, and the batch scripts that add some."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from builder.cli.options import Options, Parser
from builder.load.document import Faults
from builder.load.site import SITE, read_site
from builder.model import Site
from builder.model.errors import BadInput
from builder.verify.cluster.connection import connected
from builder.verify.cluster.executor import pool_of, pools_of
from builder.verify.cluster.orders import WorkerFacts, own_program
from builder.verify.cluster.slurm import Scheduler, script_of

_ADDRESS = "SCHEDULER"  # to replace in a script
_ROW = "{:10} {:16} {:8} {:24} {:>4} {:8} {}"


class WorkersOptions(Options):
    """The options of `workers`."""

    action: str
    pool: str
    scheduler: str


def declare(parser: Parser) -> None:
    """Add the options of `workers`."""
    parser.add_argument(
        "action",
        choices=["list", "script"],
        help="list: show the workers of a scheduler, and which of them share stages; "
        "script: print the batch script of a pool, for sbatch",
    )
    parser.add_argument("--pool", default="", metavar="NAME", help="script: a pool of site.yaml")
    parser.add_argument(
        "--scheduler",
        default="",
        metavar="ADDRESS",
        help="the address of the Dask scheduler, such as tcp://login1:8786",
    )


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
    with connected(options.scheduler, site.security) as connection:
        print(_listed(connection.workers(), site))
    return 0


def _script(options: WorkersOptions, site: Site) -> str:
    if options.pool not in site.pools:
        known = ", ".join(site.pools) or "none"
        problem = f"has no pool {options.pool}" if options.pool else "script: --pool is required"
        raise BadInput(f"{SITE}: {problem}; pools: {known}", hint="docs/scale-out.md")
    scheduler = Scheduler(address=options.scheduler or _ADDRESS, tls=site.security, folder=Path())
    return script_of(options.pool, site.pools[options.pool], scheduler)


def _listed(workers: Mapping[str, WorkerFacts | str], site: Site) -> str:
    """Return a line for each worker, and one for each group that shares stages."""
    pools = pools_of(site.pools)
    lines = [_ROW.format("pool", "machine", "native", "emulated", "GPUs", "Buildah", "").rstrip()]
    sharing: dict[str, set[str]] = defaultdict(set)
    for address, facts in sorted(workers.items()):
        if isinstance(facts, str):
            lines.append(f"{address}: not used: {facts}")
            continue
        pool = pool_of(facts, pools)
        is_ours = facts.program == own_program()
        note = "" if is_ours else "not used: it has another version of build-images"
        native, *emulated = pool.architectures
        words = (pool.name, facts.machine, native, ", ".join(emulated) or "-", facts.gpus)
        lines.append(_ROW.format(*words, facts.engine or "-", note).rstrip())
        if is_ours:
            sharing[facts.engine or "none"].add(facts.machine)
    if len(sharing) > 1:
        lines.append("Stages are shared by machines with the same Buildah only:")
        lines += [f"  {engine}: {', '.join(sorted(names))}" for engine, names in sharing.items()]
    return "\n".join(lines if workers else ["the scheduler has no workers"])
