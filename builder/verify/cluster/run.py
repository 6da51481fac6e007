"""The workers of one run: those of a scheduler that runs, or those that Slurm starts for it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from builder.build.at_work import using
from builder.build.run import BuildSettings, Run
from builder.build.site_store import STORE_HINT, add_project, site_of, store_name, store_named
from builder.model import Site, SitePool, Spec
from builder.model.errors import BadInput
from builder.verify.cluster.connection import (
    Connection,
    check_address,
    connected,
    need_distributed,
    new_scheduler,
)
from builder.verify.cluster.executor import DaskExecutor, pools_of
from builder.verify.cluster.slurm import slurm_workers

SLURM = "slurm"


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
    with using(run.tools.home, project, say):
        shared = store_named(store_name(project), run.tools, say)
        yield dataclasses.replace(run, shared=shared)


@contextlib.contextmanager
def workers_of(on: str, run: Run, specs: Sequence[Spec]) -> Iterator[DaskExecutor]:
    """Yield the executor for a run's images on the workers of a scheduler.

    `on` is its address, or `slurm`; `run` is that of `with_store`. Raises `MissingPrerequisite` for
    a scheduler that does not answer or a store that takes nothing.
    """
    need_distributed()
    project = run.settings.project
    site = site_of(project)
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
