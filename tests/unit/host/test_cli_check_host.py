"""`build-images check-host` as an administrator meets it: what it prints, and its exit codes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host_samples import MPICH, OPENMPI, RECORDS, contract, cuda, host

from builder.cli import check_host as checking
from builder.cli import main
from builder.host.records import Host, as_record
from builder.model.contract import HostContract, as_text


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A site has no project: the command must do without one."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Said:
    """What the command printed, and its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *argv: str) -> None:
        try:
            self.code: Any = main(["check-host", *argv])
        except SystemExit as ended:
            self.code = ended.code
        self.out, self.err = capsys.readouterr()


def written(contract: HostContract, folder: Path = Path()) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "host-contract.json").write_text(as_text(contract))
    return str(folder / "host-contract.json")


SATORI = f"--host={RECORDS / 'satori.json'}"
V100 = contract("ppc64le", cuda=cuda("10.1"), mpi=OPENMPI)


def test_yes_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, written(V100), SATORI)
    assert said.code == 0, said.out
    assert said.out.startswith("sample-1.0-debian12-ppc64le on satori\n")
    assert said.out.endswith(
        "\nyes: it runs here (singularity, in-container)\n"
        "  in-container  singularity exec --nv IMAGE mpirun --allow-run-as-root --oversubscribe"
        " -n 4 ./program\n"
        "  hybrid        PMIX_MCA_gds=hash srun --mpi=pmix_v3 -n 4 singularity exec --nv IMAGE"
        " ./program\n"
    )
    assert said.err == ""


def test_an_image_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    path = written(V100)
    hostile = Path(path).read_text().replace("sample-1.0", "sample\\u001b[31m")
    assert "u001b" in hostile
    Path(path).write_text(hostile)
    said = Said(capsys, path, SATORI)
    assert said.out.startswith(r"sample\x1b[31m-debian12")


def test_no_is_5_with_reason_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, written(contract("ppc64le", cuda=cuda("11.8"))), SATORI)
    assert said.code == 5
    text = " ".join(said.out.split())
    assert "✗ no driver 418.87.00 is older than 450.80.02" in text
    assert "fix: take an image with CUDA 10.1 or older" in text
    assert said.out.endswith("no: it does not run here: driver\n")


def test_cannot_tell_is_4(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text(as_record(host("satori", kernel=None, name="")))
    said = Said(capsys, written(V100), "--host=host.json")
    assert said.code == 4
    assert said.out.startswith("sample-1.0-debian12-ppc64le on a host without a name\n")
    assert said.out.endswith("cannot tell whether it runs here: kernel\n")


def test_launchers_and_runtimes_are_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    image = written(contract(mpi=MPICH))
    dgx = f"--host={RECORDS / 'dgx.json'}"
    assert Said(capsys, image, dgx, "--launcher=in-container").code == 0
    said = Said(capsys, image, dgx, "--launcher=bind", "--runtime=podman", "--json")
    found = json.loads(said.out)
    assert said.code == 5
    assert [one["rule"] for one in found["launchers"]] == ["bind"]
    assert [one["rule"] for one in found["runtimes"]] == ["podman"]


def test_json_has_every_answer(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(Said(capsys, written(V100), SATORI, "--json").out)
    assert found["schema"] == "build-images/check-host/v1"
    assert (found["image"], found["host"]) == (V100.image, "satori")
    assert (found["answer"], found["emulated"]) == ("yes", False)
    assert found["commands"]["in-container"] == (
        "singularity exec --nv IMAGE mpirun --allow-run-as-root --oversubscribe -n 4 ./program"
    )
    assert {one["rule"] for one in found["rules"]} == {
        *("architecture", "processor", "kernel", "driver", "GPUs", "compute capability")
    }
    assert all({*one} == {"rule", "answer", "reason", "fix"} for one in found["rules"])


def test_emulation_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    image = written(contract("ppc64le"))
    dgx = f"--host={RECORDS / 'dgx.json'}"
    assert Said(capsys, image, dgx).code == 5
    said = Said(capsys, image, dgx, "--emulated")
    assert said.code == 0
    assert "yes: emulated, not native" in said.out


def test_an_identifier_and_an_output_folder(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("out") / V100.image / "files"
    written(V100, folder)
    assert Said(capsys, V100.image, SATORI).code == 0
    assert Said(capsys, str(folder.parent), SATORI).code == 0
    Path("out").rename("elsewhere")
    assert Said(capsys, V100.image, SATORI, "--output=elsewhere").code == 0
    said = Said(capsys, V100.image.replace("debian12", "debian21"), SATORI, "-o", "elsewhere")
    assert said.code == 2
    assert f"did you mean {V100.image}?" in said.err


def test_all_faults_of_a_record_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("host.json").write_text('{"schema": "build-images/host/v1",\n "kernel": 5,\n "gpus": 1}')
    said = Said(capsys, written(V100), "--host=host.json")
    assert said.code == 2
    assert "2 faults in 1 file; nothing was checked." in said.err
    assert "host.json:2: kernel: expected text, found the number 5" in said.err
    assert "host.json:3: gpus: unknown key" in said.err
    assert said.out == ""


def test_a_record_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, written(V100), "--host=nowhere.json")
    assert said.code == 2
    assert "nowhere.json:1: the file is missing" in said.err


@pytest.fixture(name="here")
def this_machine(monkeypatch: pytest.MonkeyPatch) -> Host:
    found = host("satori", name="here")
    monkeypatch.setattr(checking, "this_host", lambda *_, **__: found)
    return found


def test_without_a_record_it_is_this_host(capsys: pytest.CaptureFixture[str], here: Host) -> None:
    said = Said(capsys, written(V100))
    assert said.code == 0
    assert f"on {here.name}" in said.out


def test_this_host_is_recorded(capsys: pytest.CaptureFixture[str], here: Host) -> None:
    said = Said(capsys, "--record")
    assert (said.code, said.out) == (0, as_record(here))
    Path("host.json").write_text(said.out)
    assert Said(capsys, written(V100), "--host=host.json").code == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no image: use check-host IMAGE"),
        (["image.sif", "--record"], "--record prints this host"),
        (["--record", "--host=x.json"], "--record prints this host"),
        (["image.sif"], "no such image"),
        (["/dev/null"], "neither a file nor a folder"),
        (["image.sif", "--launcher=ssh"], "invalid choice: 'ssh'"),
        (["image.sif", "--runtime=enroot"], "invalid choice: 'enroot'"),
    ],
)
def test_bad_usage_is_2(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, *argv)
    assert said.code == 2
    assert words in said.err


def test_facts_of_a_project_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Which CUDA a driver runs is told by the tables, with the rows that a project adds."""
    (tmp_path / "facts").mkdir()
    row = '{version: "10.1", update: 10.1.9, driver: "418.90", architectures: ppc64le'
    text = f"releases:\n  - {row}, sources: https://site.example/cuda}}\n"
    (tmp_path / "facts/cuda.yaml").write_text(text)
    said = Said(capsys, written(contract("ppc64le", cuda=cuda("11.8"))), SATORI)
    assert "CUDA 10.0 or older" in " ".join(said.out.split())
    (tmp_path / "facts/cuda.yaml").write_text("releases: 1\n")
    said = Said(capsys, written(V100), SATORI)
    assert said.code == 2
    assert "facts/cuda.yaml:1: releases: expected a list" in said.err
