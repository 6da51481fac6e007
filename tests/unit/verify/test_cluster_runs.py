"""What a run on workers needs, and the jobs of Slurm that it starts and ends."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_registry import Fake
from samples import image
from test_cluster_executor import Noting, facts

from builder.build.at_work import projects
from builder.build.engines import ENGINES, Tools
from builder.build.executor import WorkerJoined
from builder.build.run import BuildSettings, Run
from builder.build.schedule import Attempt
from builder.build.site_store import store_named
from builder.build.tasks import Task
from builder.compile.spec import compile_spec
from builder.model import SitePool, SlurmJobs
from builder.model.errors import BadInput, BuildImagesError, MissingPrerequisite
from builder.system.home import Home
from builder.system.host_facts import host_facts
from builder.system.process import Processes
from builder.system.terminal import Progress
from builder.verify.cluster import run as run_module
from builder.verify.cluster.connection import Scheduler, connected
from builder.verify.cluster.run import check_on, slurm_workers, with_store, workers_of

X86 = SitePool(arch="x86_64", slurm=SlurmJobs(workers=3))
SCHEDULER = Scheduler(address="tls://h:1")
SITE = """\
store: {store}
pools:
  power: {{arch: ppc64le}}
  x86: {{arch: x86_64, slurm: {{workers: 2}}}}
"""
POWER = SitePool(arch="ppc64le", slurm=SlurmJobs(options=("--partition=power",)))


def run_in(folder: Path, *, offline: bool) -> Run:
    tools = Tools(processes=Processes(), home=Home(path=folder / "home"))
    return Run(
        settings=BuildSettings(
            project=folder, out=folder / "out", engine="buildah", formats=("oci",), offline=offline
        ),
        tools=tools,
        engine=ENGINES["buildah"](tools),
        progress=Progress(stream=io.StringIO()),
        host=host_facts(),
    )


@pytest.mark.parametrize(
    ("on", "store", "offline", "problem"),
    [
        ("tcp://h:1", "", False, "--on needs a store that all workers share"),
        ("tcp://h:1", "h:1/cache", True, "--offline: h:1/cache is in a registry"),
        ("slurm", "STORE", False, "--on slurm: site.yaml names no pool with slurm:"),
        ("http://h:1", "STORE", False, "http://h:1: not the address of a Dask scheduler"),
        ("tcp://h", "STORE", False, "tcp://h: not the address of a Dask scheduler"),
        ("slrum", "STORE", False, "slrum: not the address of a Dask scheduler"),
        ("tls://h:1", "STORE", False, "tls://h:1: TLS needs security: in site.yaml"),
    ],
)
def test_a_run_on_workers_that_cannot_be(
    on: str,
    store: str,
    offline: bool,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_STORE", store.replace("STORE", str(tmp_path / "store")))
    with pytest.raises(BadInput) as caught:
        check_on(on, run_in(tmp_path, offline=offline).settings)
    assert str(caught.value.args[0]) == problem
    assert caught.value.hint
    assert (caught.value.hint == "docs/scale-out.md") is on.startswith("tls")


def test_a_store_that_takes_nothing_starts_no_workers(
    tmp_path: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests/images").mkdir(parents=True)
    (tmp_path / "site.yaml").write_text("pools: {x86: {arch: x86_64, slurm: {}}}\n")
    monkeypatch.setenv("BUILD_IMAGES_STORE", str(tmp_path / "missing"))
    with (
        with_store(run_in(tmp_path, offline=False)) as run,
        pytest.raises(MissingPrerequisite, match="could not be added to the site's store"),
        workers_of("slurm", run, []),
    ):
        pass
    assert not asked.exists()


def test_an_architecture_that_no_pool_builds_starts_no_workers(
    tmp_path: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = "a: {arch: x86_64, builds: [ppc64le], slurm: {}}, b: {arch: x86_64, slurm: {}}"
    (tmp_path / "site.yaml").write_text(f"pools: {{{pools}, arm: {{arch: aarch64}}}}\n")
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("BUILD_IMAGES_STORE", str(tmp_path / "store"))
    planned = image(tmp_path / "project")
    specs = [
        compile_spec(replace(planned, cell=replace(planned.cell, arch=arch)), run_checks="")
        for arch in ("x86_64", "s390x", "aarch64", "ppc64le", "aarch64")
    ]
    with (
        with_store(run_in(tmp_path, offline=False)) as run,
        pytest.raises(BadInput) as caught,
        workers_of("slurm", run, specs),
    ):
        pass
    assert str(caught.value.args[0]) == (
        "--on slurm: no pool of site.yaml with slurm: builds aarch64 (2 images), s390x (1 image); "
        "pools: a: x86_64, ppc64le; b: x86_64"
    )
    assert not asked.exists()


def test_a_scheduler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.verify.cluster.connection._ANSWER_S", 0.1)
    with (
        pytest.raises(MissingPrerequisite, match=r"^tcp://127\.0\.0\.1:9: no Dask"),
        connected("tcp://127.0.0.1:9", None),
    ):
        pass


# ---- The executor of a run ----


@pytest.mark.parametrize("on", ["tcp://h:1", "slurm"])
def test_a_run_gets_the_workers_of_its_scheduler(
    on: str, asked: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a store in a registry, and offline with one in a folder."""
    folder, noting = asked.parent, Noting()
    (folder / "store").mkdir()
    (folder / "tests/images").mkdir(parents=True)
    store = str(folder / "store") if on == "slurm" else f"{fake.host}/site/cache"
    (folder / "site.yaml").write_text(SITE.format(store=store))
    monkeypatch.delenv("BUILD_IMAGES_STORE", raising=False)

    @contextlib.contextmanager
    def a_scheduler(address: object, security: object = None) -> Iterator[Any]:
        """One that runs, or one that is started in a folder."""
        assert (on, security) == (address, None) or address == folder / "home/clusters"
        yield noting if on == address else (Scheduler(address="tls://h:2"), noting)

    monkeypatch.setattr(run_module, "connected", a_scheduler)
    monkeypatch.setattr(run_module, "new_scheduler", a_scheduler)
    spec = compile_spec(image(folder / "project"), run_checks="")
    run = run_in(folder, offline=on == "slurm")
    out = folder / "deep/er/out"
    run = dataclasses.replace(run, settings=dataclasses.replace(run.settings, out=out))
    if on == "slurm":
        out.mkdir(parents=True)
    check_on(on, run.settings)
    with with_store(run) as with_its_store, workers_of(on, with_its_store, [spec]) as executor:
        assert [pool.name for pool in executor.pools] == ["power", "x86"]
        noting.joined("tcp://n1", facts(pool="x86"))
        joined = executor.events.get_nowait()
        assert isinstance(joined, WorkerJoined)
        attempt = Attempt(name="base x", number=1, worker=joined.worker)
        name = spec.image.identifier
        executor.start(
            Task(name="base x", kind="base", work=print, label="base x", image=name), attempt
        )
        [(order, _, _)] = noting.submitted.values()
        assert order.store == store
        entry = store_named(store, run.tools, print).blobs(order.project)
        own = {name for name in entry if not name.startswith(".layers/shipped/")}
        assert (own, out.is_dir()) == ({"site.yaml"}, True)
        assert executor.run.shared.is_used
        jobs = asked.read_text().splitlines() if asked.exists() else []
        assert jobs == (["sbatch --parsable"] if on == "slurm" else [])
    assert projects(run.tools.home) == [str(folder)]


@pytest.fixture(name="asked")
def slurm_that_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with what sbatch and scancel were asked; sbatch knows no partition `power`.

    It says nothing of what a pool `silent` lacks. Scripts are kept beside the file.
    """
    asked = tmp_path / "asked"
    programs = {
        "sbatch": f'echo "sbatch $1" >> {asked}\n'
        f"cp $2 {tmp_path}\n"
        "if grep -q partition=power $2; then echo 'Error:\nInvalid partition' >&2; exit 1; fi\n"
        "case $2 in */silent.sh) exit 7;; */build-images-jobs-*) ;; *) exit 8;; esac\n"
        'echo "$(basename "$2" | wc -c);cluster"',
        "scancel": f'echo "scancel $*" >> {asked}',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return asked


def test_the_jobs_of_a_run_are_submitted_and_cancelled(asked: Path) -> None:
    said: list[str] = []
    processes = Processes()
    pools = {"x86": X86, "x86-64": X86, "local": SitePool(arch="x86_64")}
    scheduler = Scheduler(address="tls://h:1", folder=asked.parent / "clusters/run-1")
    with slurm_workers(scheduler, pools, processes, said.append):
        assert asked.read_text() == "sbatch --parsable\n" * 3
        processes.stop()  # as an interruption does
    assert asked.read_text().splitlines()[3] == "scancel 7 10 9"
    assert said == ["Slurm job 7: 3 x x86", "Slurm job 10: 3 x x86-64", "Slurm job 9: 1 x local"]
    logs = f"#SBATCH --output={asked.parent}/clusters/%x-%A-%a.log\n"
    assert logs in (asked.parent / "x86.sh").read_text()


@pytest.mark.parametrize(
    ("pool", "slurm", "reason"),
    [
        ("power", POWER, "Invalid partition\n"),
        ("silent", X86, "sbatch --parsable "),
    ],
)
def test_a_job_that_slurm_refuses_ends_the_others(
    pool: str, slurm: SitePool, reason: str, asked: Path
) -> None:
    with (
        pytest.raises(BuildImagesError) as caught,
        slurm_workers(
            Scheduler(address="tls://h:1"), {"x86": X86, pool: slurm}, Processes(), print
        ),
    ):
        pass
    assert str(caught.value).startswith(f"Slurm refuses the job of pool {pool}: {reason}")
    assert f"workers script --pool {pool}" in caught.value.hint
    assert asked.read_text().splitlines()[-1] == "scancel 7"


def test_nothing_is_cancelled_where_no_job_was_submitted(asked: Path) -> None:
    with (
        pytest.raises(MissingPrerequisite),
        slurm_workers(SCHEDULER, {"power": POWER}, Processes(), print),
    ):
        pass
    assert asked.read_text() == "sbatch --parsable\n"
