"""`workers`: the batch script of a pool, and the workers of a scheduler."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from samples import GOLDEN, ROOT, compare_with_golden

from builder.cli import main
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


@pytest.fixture(name="found")
def workers_that_are_there(monkeypatch: pytest.MonkeyPatch) -> dict[str, WorkerFacts | str]:
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

    monkeypatch.setattr("builder.verify.cluster.run.connected", connected)
    return found


def test_the_workers_of_a_scheduler(
    site: Path, capsys: pytest.CaptureFixture[str], found: dict[str, WorkerFacts | str]
) -> None:
    words = ["workers", "list", "--scheduler", "tls://login1:8786", "--project", str(site)]
    assert main(words) == 0
    compare_with_golden(capsys.readouterr().out, "workers/list.txt")
    for name, is_told in (("tls://n3", True), ("tls://n2", False)):
        del found[name]
        assert main(words) == 0
        assert ("Stages are shared by" in capsys.readouterr().out) is is_told
    found.clear()
    assert main(words) == 0
    assert capsys.readouterr().out == "the scheduler has no workers\n"


@pytest.mark.usefixtures("found")
def test_a_plan_shows_the_workers_and_how_they_differ(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_SITE", str(site / "site.yaml"))
    words = ["plan", "--recipe=hpc-base", "--arch=x86_64", f"--project={ROOT}"]
    on = ["--on", "tls://login1:8786"]
    assert main([*words]) == 0
    alone = capsys.readouterr().out
    assert main([*words, *on]) == 0
    listed = (GOLDEN / "workers/list.txt").read_text()
    assert capsys.readouterr().out == f"{alone}\n{listed}"
    assert main([*words, *on, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["schema"] == "build-images/plan/v1"
    assert values["sharing_stages"] == {"1.39.3": ["n1"], "1.28.2": ["n2"], "none": ["n3"]}
    rows = {row["address"]: row for row in values["workers"]}
    assert [name for name, row in rows.items() if row["problem"]] == ["tls://n4", "tls://n5"]
    assert rows["tls://n5"]["gpus"] == 0
    assert rows["tls://n2"] == {
        "address": "tls://n2",
        "machine": "n2",
        "pool": "x86",
        "architectures": ["x86_64", "ppc64le"],
        "gpus": 4,
        "engine": "1.28.2",
        "problem": "",
    }


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
