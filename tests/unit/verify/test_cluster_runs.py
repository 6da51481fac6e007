"""What a run on workers needs, and the jobs of Slurm that it starts and ends."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from builder.build.engines import ENGINES, Tools
from builder.build.run import BuildSettings, Run
from builder.model import SitePool, SlurmJobs
from builder.model.errors import BadInput, BuildImagesError, MissingPrerequisite
from builder.system.home import Home
from builder.system.host_facts import host_facts
from builder.system.process import Processes
from builder.system.terminal import Progress
from builder.verify.cluster.connection import connected
from builder.verify.cluster.run import check_on, with_store, workers_of
from builder.verify.cluster.slurm import Scheduler, slurm_workers

X86 = SitePool(arch="x86_64", slurm=SlurmJobs(workers=3))
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


def test_a_scheduler_that_does_not_answer() -> None:
    with (
        pytest.raises(MissingPrerequisite, match=r"^tcp://127\.0\.0\.1:9: no Dask"),
        connected("tcp://127.0.0.1:9", None),
    ):
        pass


@pytest.fixture(name="asked")
def slurm_that_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with what sbatch and scancel were asked; sbatch knows no partition `power`."""
    asked = tmp_path / "asked"
    programs = {
        "sbatch": f'echo "sbatch $1" >> {asked}\n'
        "if grep -q partition=power $2; then echo 'Invalid partition' >&2; exit 1; fi\n"
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
    pools = {"x86": X86, "x86-64": X86}
    with slurm_workers(Scheduler(address="tls://h:1"), pools, processes, said.append):
        assert asked.read_text() == "sbatch --parsable\n" * 2
        processes.stop()  # as an interruption does
    assert asked.read_text().splitlines()[2] == "scancel 7 10"
    assert said == ["Slurm job 7: 3 x x86", "Slurm job 10: 3 x x86-64"]


def test_a_job_that_slurm_refuses_ends_the_others(asked: Path) -> None:
    pools = {"x86": X86, "power": POWER}
    with (
        pytest.raises(BuildImagesError) as caught,
        slurm_workers(Scheduler(address="tls://h:1"), pools, Processes(), print),
    ):
        pass
    assert str(caught.value).startswith("Slurm refuses the job of pool power: Invalid partition\n")
    assert "workers script --pool power" in caught.value.hint
    assert asked.read_text().splitlines()[-1] == "scancel 7"
