"""`workers`: the batch script of a pool, and the workers of a scheduler."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples import compare_with_golden

from builder.cli import main, workers
from builder.model import TlsFiles
from builder.verify.cluster.orders import WorkerFacts, own_program

SITE = """\
pools:
  x86:
    arch: x86_64
    builds: [x86_64, ppc64le]
    slurm:
      options: [--partition=cpu, "--time=4:00:00"]
      workers: 8
      setup: [module load python, export BUILD_IMAGES_HOME=/local/build-images]
  power: {arch: ppc64le}
security: {ca: /etc/dask/ca.pem, certificate: /etc/dask/node.pem, key: /etc/dask/node.key}
"""


@pytest.fixture(name="site")
def project_of_a_site(tmp_path: Path) -> Path:
    (tmp_path / "site.yaml").write_text(SITE)
    (tmp_path / "matrix.yaml").write_text("axes: {}\n")
    return tmp_path


@pytest.mark.parametrize("pool", ["x86", "power"])
def test_the_script_of_a_pool(
    pool: str, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python3")
    more = ["--scheduler", "tls://login1:8786"] if pool == "x86" else []
    assert main(["workers", "script", "--pool", pool, "--project", str(site), *more]) == 0
    compare_with_golden(capsys.readouterr().out, f"workers/{pool}.sh")


def facts(machine: str, **changes: object) -> WorkerFacts:
    values: dict[str, object] = {
        "arch": "x86_64",
        "emulates": ("ppc64le",),
        "gpus": 0,
        "program": own_program(),
        "engine": "1.39.3",
        **changes,
    }
    return WorkerFacts(machine=machine, **values)  # type: ignore[arg-type]


def test_the_workers_of_a_scheduler(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, WorkerFacts | str] = {
        "tls://n1": facts("n1", pool="x86"),
        "tls://n2": facts("n2", engine="1.28.2", gpus=4),
        "tls://n3": facts("n3", arch="ppc64le", emulates=(), engine=""),
        "tls://n4": facts("n4", program="sha256:0", pool="old"),
        "tls://n5": "it does not say what it is: ModuleNotFoundError: No module named 'builder'",
    }

    class Asked:
        def workers(self) -> dict[str, WorkerFacts | str]:
            return found

    @contextlib.contextmanager
    def connected(address: str, security: TlsFiles) -> Iterator[Asked]:
        assert (address, security.ca) == ("tls://login1:8786", "/etc/dask/ca.pem")
        yield Asked()

    monkeypatch.setattr(workers, "connected", connected)
    words = ["workers", "list", "--scheduler", "tls://login1:8786", "--project", str(site)]
    assert main(words) == 0
    compare_with_golden(capsys.readouterr().out, "workers/list.txt")
    found.clear()
    assert main(words) == 0
    assert capsys.readouterr().out == "the scheduler has no workers\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["script", "--pool", "gpu"], r"site.yaml: has no pool gpu; pools: x86, power"),
        (["script"], r"site.yaml: script: --pool is required; pools: x86, power"),
        (["list"], r"list: --scheduler is required"),
    ],
)
def test_what_a_command_line_lacks(
    words: list[str], told: str, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["workers", *words, "--project", str(site)])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert re.search(told, capsys.readouterr().err)


def test_faults_of_the_site_are_told(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "site.yaml").write_text("pools: {x86: {}}\n")
    assert main(["workers", "script", "--pool", "x86", "--project", str(site)]) == 2
    assert "site.yaml:1: pools.x86.arch: this key is missing" in capsys.readouterr().err
