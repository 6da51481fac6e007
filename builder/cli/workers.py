"""`build-images workers`: the workers of a scheduler, and the batch scripts that add some."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.cli.options import Options, Parser
from builder.load.document import Faults
from builder.load.site import SITE, read_site
from builder.model import Site
from builder.model.errors import BadInput
from builder.model.exact_json import JsonObject
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
    print(workers_text(listed_workers(options.scheduler, site)))
    return 0


def _script(options: WorkersOptions, site: Site) -> str:
    if options.pool not in site.pools:
        known = ", ".join(site.pools) or "none"
        problem = f"has no pool {options.pool}" if options.pool else "script: --pool is required"
        raise BadInput(f"{SITE}: {problem}; pools: {known}", hint="docs/scale-out.md")
    scheduler = Scheduler(address=options.scheduler or _ADDRESS, tls=site.security, folder=Path())
    return script_of(options.pool, site.pools[options.pool], scheduler)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedWorker:
    """A worker of a scheduler. `problem` says why it is not used; the rest may be unknown then.

    `architectures` are those of its pool, the native one first; `engine` is the version of Buildah.
    """

    address: str
    machine: str = ""
    pool: str = ""
    architectures: Sequence[str] = ()
    gpus: int = 0
    engine: str = ""
    problem: str = ""


def listed_workers(address: str, site: Site) -> list[ListedWorker]:
    """Return the workers of a scheduler; raises `MissingPrerequisite` if it does not answer."""
    with connected(address, site.security) as connection:
        found = sorted(connection.workers().items())
    return [_listed(name, facts, site) for name, facts in found]


def _listed(address: str, facts: WorkerFacts | str, site: Site) -> ListedWorker:
    if isinstance(facts, str):
        return ListedWorker(address=address, problem=facts)
    pool = pool_of(facts, pools_of(site.pools))
    is_ours = facts.program == own_program()
    return ListedWorker(
        address=address,
        machine=facts.machine,
        pool=pool.name,
        architectures=pool.architectures,
        gpus=facts.gpus,
        engine=facts.engine,
        problem="" if is_ours else "it has another version of build-images",
    )


def sharing_stages(workers: Sequence[ListedWorker]) -> dict[str, list[str]]:
    """Return the machines that share stages, by their version of Buildah."""
    sharing: dict[str, set[str]] = defaultdict(set)
    for worker in workers:
        if not worker.problem:
            sharing[worker.engine or "none"].add(worker.machine)
    return {engine: sorted(machines) for engine, machines in sharing.items()}


def workers_json(workers: Sequence[ListedWorker]) -> JsonObject:
    """Return workers, and the groups that share stages, as JSON values."""
    return {"workers": [*map(asdict, workers)], "sharing_stages": sharing_stages(workers)}


def workers_text(workers: Sequence[ListedWorker]) -> str:
    """Return a line for each worker, and one for each group that shares stages."""
    lines = [_ROW.format("pool", "machine", "native", "emulated", "GPUs", "Buildah", "").rstrip()]
    for worker in workers:
        note = f"not used: {worker.problem}" if worker.problem else ""
        if not worker.machine:
            lines.append(f"{worker.address}: {note}")
            continue
        native, *emulated = worker.architectures
        words = (worker.pool, worker.machine, native, ", ".join(emulated) or "-", worker.gpus)
        lines.append(_ROW.format(*words, worker.engine or "-", note).rstrip())
    if len(sharing := sharing_stages(workers)) > 1:
        lines.append("Stages are shared by machines with the same Buildah only:")
        lines += [f"  {engine}: {', '.join(machines)}" for engine, machines in sharing.items()]
    return "\n".join(lines if workers else ["the scheduler has no workers"])
