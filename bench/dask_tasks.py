"""Tasks that do nothing, through the program's schedule and a real Dask scheduler.

    python bench/dask_tasks.py [--tasks 10000] [--workers 100] [--json]

The workers are threads of this process, each with one slot. Every task is submitted when its
worker is free, as in a run, and its result is read and accepted. A run on workers adds this time to
each task, besides the start of its process on the worker. The memory is that of this process,
scheduler and workers included.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from distributed import Client, LocalCluster
from timing import machine

from builder.build.engines import ENGINES, Tools
from builder.build.executor import run_all
from builder.build.planning import compile_images, load_images
from builder.build.run import BuildSettings, Run
from builder.build.schedule import Schedule
from builder.build.tasks import Task
from builder.model import Selection
from builder.system.home import Home
from builder.system.host_facts import host_facts
from builder.system.process import Processes
from builder.system.terminal import Progress
from builder.verify.cluster import connection
from builder.verify.cluster.connection import Connection
from builder.verify.cluster.executor import DaskExecutor
from builder.verify.cluster.orders import OrderResult, WorkerFacts, own_program

PROJECT = Path(__file__).parents[1]
REACH_MS = 10.0  # a task


def nothing(key: str, text: str) -> str:
    """Stand in for `carry_out_here`."""
    del key, text
    return OrderResult().text()


def facts() -> WorkerFacts:
    """Stand in for `describe`."""
    return WorkerFacts(
        machine=platform.node(),
        arch=platform.machine(),
        emulates=(),
        gpus=0,
        program=own_program(),
        engine="",
    )


def measure(tasks: int, workers: int, folder: Path) -> tuple[float, float]:
    """Return the seconds of a run, and the MB that this process needed for it."""
    connection.carry_out_here = nothing
    vars(connection)["describe"] = facts
    images = load_images(PROJECT, Selection(images=("hpc-base-*-x86_64",)))
    [spec, *_] = compile_images(PROJECT, images)
    tools = Tools(processes=Processes(), home=Home(path=folder))
    run = Run(
        settings=BuildSettings(project=PROJECT, out=folder, engine="buildah", formats=("oci",)),
        tools=tools,
        engine=ENGINES["buildah"](tools),
        progress=Progress(stream=io.StringIO()),
        host=host_facts(),
    )
    name = spec.image.identifier
    todo = [
        Task(name=f"stage {number}", kind="stage", work=lambda: None, image=name)
        for number in range(tasks)
    ]
    ended: list[str] = []

    def on_end(task: Task, error: BaseException | None, dropped: Sequence[Task]) -> None:
        assert error is None, error
        assert not dropped
        ended.append(task.name)

    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=False,
            memory_limit=0,
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        connected = Connection(client)
        executor = DaskExecutor(connected, run, {name: spec}, store=str(folder), project="sha256:0")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.monotonic()
        run_all(Schedule(todo, workers=()), executor, on_end=on_end)
        seconds = time.monotonic() - start
        connected.close()
    assert len({*ended}) == len(ended) == tasks
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="build-images-dask-") as folder:
        seconds, megabytes = measure(options.tasks, options.workers, Path(folder))
    each = 1000 * seconds / options.tasks
    figures = {"seconds": seconds, "ms a task": each, "MB": megabytes, "machine": machine()}
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        print(f"{options.tasks} tasks on {options.workers} workers; {machine()}")
        print(f"{seconds:.1f} s, {each:.2f} ms a task, {megabytes:.0f} MB more memory")
    return 0 if each <= REACH_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())
