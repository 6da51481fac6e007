"""The workers of a scheduler that runs, or that Slurm starts for one run; and a list of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from builder.build.at_work import store_in_use
from builder.build.run import BuildSettings, Run
from builder.build.site_store import STORE_HINT, add_project, site_of, store_name, store_named
from builder.model import Site, SitePool, Spec
from builder.model.errors import BadInput, counted
from builder.model.exact_json import JsonObject
from builder.verify.cluster.connection import (
    Connection,
    check_address,
    connected,
    need_distributed,
    new_scheduler,
)
from builder.verify.cluster.executor import DaskExecutor, pool_of, pools_of
from builder.verify.cluster.orders import WorkerFacts, own_program
from builder.verify.cluster.slurm import slurm_workers

SLURM = "slurm"
_ROW = "{:10} {:16} {:8} {:24} {:>4} {:8} {}"


def check_on(on: str, settings: BuildSettings) -> None:
    """Raise `BadInput` for what cannot name workers, and without a store that they share."""
    site, store = site_of(settings.project), store_name(settings.project)
    if on != SLURM:
        check_address(on, has_security=bool(site.security))
    elif not _pools_of_slurm(site):
        raise BadInput(
            "--on slurm: site.yaml names no pool with slurm:",
            hint="docs/scale-out.md has an example: 'pools: {x86: {arch: x86_64, slurm: {...}}}'",
        )
    if not store:
        raise BadInput("--on needs a store that all workers share", hint=STORE_HINT)
    if settings.offline and not store.startswith("/"):
        raise BadInput(f"--offline: {store} is in a registry", hint="name a folder as the store")


@contextlib.contextmanager
def with_store(run: Run) -> Iterator[Run]:
    """Yield the run with the store that its workers will share; no worker is needed to ask it."""
    project, say = run.settings.project, run.progress.say
    run.settings.out.mkdir(parents=True, exist_ok=True)
    with store_in_use(run.tools.home, project, say):
        shared = store_named(store_name(project), run.tools, say)
        yield dataclasses.replace(run, shared=shared)


@contextlib.contextmanager
def workers_of(on: str, run: Run, specs: Sequence[Spec]) -> Iterator[DaskExecutor]:
    """Yield the executor for a run's images on the workers of a scheduler.

    `on` is its address, or `slurm`; `run` is that of `with_store`. Raises `MissingPrerequisite` for
    a scheduler that does not answer or a store that takes nothing, and `BadInput` for images whose
    architecture no pool of Slurm builds.
    """
    need_distributed()
    project = run.settings.project
    site = site_of(project)
    if on == SLURM:
        _check_architectures(site, specs)
    digest = add_project(run.shared, project, specs)
    with _connection(on, run, site) as connection:
        yield DaskExecutor(
            connection,
            run,
            {spec.image.identifier: spec for spec in specs},
            store=store_name(project),
            project=digest,
            pools=pools_of(site.pools),
        )


def _pools_of_slurm(site: Site) -> dict[str, SitePool]:
    return {name: pool for name, pool in site.pools.items() if pool.slurm}


def _check_architectures(site: Site, specs: Sequence[Spec]) -> None:
    pools = pools_of(_pools_of_slurm(site))
    built = {arch for pool in pools for arch in pool.architectures}
    counts = Counter(spec.image.cell.arch for spec in specs)
    if lacking := sorted(counts.keys() - built):
        images = ", ".join(f"{arch} ({counted(counts[arch], 'image')})" for arch in lacking)
        raise BadInput(
            f"--on slurm: no pool of site.yaml with slurm: builds {images}; pools: "
            + "; ".join(f"{pool.name}: {', '.join(pool.architectures)}" for pool in pools),
            hint="add it to 'builds' of a pool whose machines run it under QEMU, or select the "
            "others with --arch",
        )


@contextlib.contextmanager
def _connection(on: str, run: Run, site: Site) -> Iterator[Connection]:
    if on != SLURM:
        with connected(on, site.security) as connection:
            yield connection
        return
    with (
        new_scheduler(run.tools.home.clusters) as (scheduler, connection),
        slurm_workers(scheduler, _pools_of_slurm(site), run.tools.processes, run.progress.say),
    ):
        yield connection


# ---- Who is at work ----


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
        workers = sorted(connection.workers().items())
    return [_listed(address, facts, site) for address, facts in workers]


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
