"""The workers of one run: those of a scheduler that runs, or those that Slurm starts for it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from builder.build.at_work import using
from builder.build.run import Run
from builder.build.site_store import STORE_HINT, add_project, site_of, store_name, store_named
from builder.model import Site, Spec
from builder.model.errors import BadInput
from builder.verify.cluster.connection import Connection, connected, need_distributed, new_scheduler
from builder.verify.cluster.executor import DaskExecutor, pools_of
from builder.verify.cluster.slurm import slurm_workers

SLURM = "slurm"


@contextlib.contextmanager
def workers_of(on: str, run: Run, specs: Sequence[Spec]) -> Iterator[DaskExecutor]:
    """Yield the executor for a run's images on the workers of a scheduler.

    `on` is its address, or `slurm`. Raises `BadInput` without a store that the workers share, and
    `MissingPrerequisite` for a scheduler that does not answer or a store that takes nothing.
    """
    need_distributed()
    project, progress, home = run.settings.project, run.progress, run.tools.home
    site = site_of(project)
    store = store_name(project)
    if not store:
        raise BadInput("--on needs a store that all workers share", hint=STORE_HINT)
    if run.settings.offline and not store.startswith("/"):
        raise BadInput(f"--offline: {store} is in a registry", hint="name a folder as the store")
    run.settings.out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        held.enter_context(using(home, project, progress.say))
        shared = store_named(store, run.tools, progress.say)
        run = dataclasses.replace(run, shared=shared)
        digest = add_project(shared, project, specs)
        connection = held.enter_context(_connection(on, run, site))
        executor = DaskExecutor(
            connection,
            run,
            {spec.image.identifier: spec for spec in specs},
            store=store,
            project=digest,
            pools=pools_of(site.pools),
        )
        yield executor


@contextlib.contextmanager
def _connection(on: str, run: Run, site: Site) -> Iterator[Connection]:
    if on != SLURM:
        with connected(on, site.security) as connection:
            yield connection
        return
    pools = {name: pool for name, pool in site.pools.items() if pool.slurm}
    if not pools:
        raise BadInput(
            "--on slurm: site.yaml names no pool with slurm:",
            hint="docs/scale-out.md has an example: 'pools: {x86: {arch: x86_64, slurm: {...}}}'",
        )
    with (
        new_scheduler(run.tools.home.path / "clusters") as (scheduler, connection),
        slurm_workers(scheduler, pools, run.tools.processes, run.progress.say),
    ):
        yield connection
