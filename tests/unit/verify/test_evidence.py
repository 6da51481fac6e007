"""Evidence of a run: what it must say, its schema, and that nothing is said that was not found."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from builder.cli.schema import schema_of
from builder.model import FAILED, PASSED, SKIPPED, Artifact, Outcome
from builder.model.measurement import HostFacts
from builder.system.host_facts import host_facts, lost_gpus
from builder.verify.evidence import (
    RunEvidence,
    StartedBy,
    host_of_checks,
    images_own,
    write_evidence,
)

HOST = HostFacts(arch="x86_64", kernel="6.1", cpu="a cpu", cores=2, os="Debian")
V100 = "Tesla V100-SXM2-32GB"
GPU_HOST = HostFacts(
    arch="ppc64le",
    kernel="4.18",
    cpu="POWER9",
    cores=160,
    os="RHEL",
    driver="418.87.01",
    gpus=(V100,) * 4,
)
ARTIFACTS = [
    Artifact(format="oci", path=Path("i"), digest="sha256:a1", size=1, tree_digest="sha256:t1"),
    Artifact(format="sif", path=Path("s"), digest="sha256:b2", size=1, tree_digest="sha256:t1"),
]
STARTED, FINISHED = "2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00+00:00"


def test_the_host_of_a_report_is_that_of_its_checks(tmp_path: Path) -> None:
    here, there, again = (tmp_path / name for name in ("here", "there", "again"))
    evidence(here)
    evidence(again)
    evidence(there, host=GPU_HOST)
    (tmp_path / "broken.json").write_text("[]")
    broken, missing = tmp_path / "broken.json", tmp_path / "missing.json"
    files = [folder / "evidence/sif.json" for folder in (here, again, there)]
    assert host_of_checks([*files[:2], broken, missing]) == {
        **asdict(HOST),
        "gpus": [],
    }
    assert host_of_checks(files) == {
        "arch": "x86_64, ppc64le",
        "cpu": "a cpu, POWER9",
        "os": "Debian, RHEL",
        "kernel": "6.1, 4.18",
    }
    assert host_of_checks([broken]) == {}


def hexes(statement: dict[str, Any]) -> dict[str, Any]:
    """A statement with digests of full length, as the schema wants them."""
    text = json.dumps(statement)
    for short in ("a1", "b2", "t1", "c3"):
        text = text.replace(f'"{short}"', json.dumps(short.replace("t", "d") * 32))
    found: dict[str, Any] = json.loads(text)
    return found


def an_outcome(outcome: str, check: str = "mpi") -> Outcome:
    return Outcome(check=check, outcome=outcome, reason="because", data={"n": 1}, duration_s=0.5)


def evidence(
    folder: Path,
    *outcomes: Outcome,
    artifacts: list[Artifact] | None = None,
    emulator: str = "",
    host: HostFacts = HOST,
    gpu: bool = False,
) -> dict[str, Any]:
    run = RunEvidence(
        identifier="core-1.0-x86_64",
        artifacts=artifacts or ARTIFACTS,
        outcomes=outcomes,
        scripts={"mpi": "c3"},
        format="sif",
        runner="apptainer",
        runner_version="1.4.5",
        host=host,
        started=STARTED,
        finished=FINISHED,
        emulator=emulator,
        no_gpu="" if gpu else "no check of the image needs one",
        tools={"apptainer": "1.4.5"},
    )
    assert write_evidence(folder, "sif", run) == "evidence/sif.json"
    path = folder / "evidence/sif.json"
    assert {file.name for file in path.parent.iterdir()} == {"sif.json", "sif.xml"}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_trees_that_differ_are_named_by_format(tmp_path: Path) -> None:
    other = Artifact(
        format="sif", path=Path("s"), digest="sha256:b2", size=1, tree_digest="sha256:t2"
    )
    found = evidence(tmp_path, an_outcome(FAILED), artifacts=[ARTIFACTS[0], other])
    names = [one["name"].removeprefix("core-1.0-x86_64/") for one in found["subject"]]
    assert names == ["oci", "sif", "oci/tree", "sif/tree"]


@pytest.mark.parametrize(
    ("outcomes", "result"),
    [
        ([PASSED, PASSED], "PASSED"),
        ([PASSED, SKIPPED], "WARNED"),
        ([PASSED, SKIPPED, FAILED], "FAILED"),
        ([FAILED], "FAILED"),
    ],
)
def test_result_is_the_worst(outcomes: list[str], result: str, tmp_path: Path) -> None:
    found = evidence(tmp_path, *(an_outcome(one, f"c{n}") for n, one in enumerate(outcomes)))
    assert found["predicate"]["result"] == result


def test_each_check_is_listed_once_and_skipped_among_the_warned(tmp_path: Path) -> None:
    given = [an_outcome(PASSED, "a"), an_outcome(SKIPPED, "b"), an_outcome(FAILED, "c")]
    found = evidence(tmp_path, *given)["predicate"]
    assert found["passedTests"] == ["a"]
    assert found["warnedTests"] == ["b"]
    assert found["failedTests"] == ["c"]
    findings = {one["name"]: one["annotations"] for one in found["configuration"]}
    assert findings["b"] == {
        "outcome": SKIPPED,
        "reason": "because",
        "duration_s": 0.5,
        "data": {"n": 1},
    }


def test_what_no_json_can_hold_is_no_evidence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        evidence(tmp_path, replace(an_outcome(PASSED), data={"n": float("nan")}))


def test_evidence_says_what_emulated(tmp_path: Path) -> None:
    found = evidence(tmp_path, an_outcome(PASSED), emulator="qemu 11.1")
    run = found["predicate"]["configuration"][0]["annotations"]
    assert (run["emulated"], run["emulator"]) == (True, "qemu 11.1")
    assert 'name="emulated" value="qemu 11.1"' in (tmp_path / "evidence/sif.xml").read_text()


def test_evidence_says_which_gpus_it_was_found_on(tmp_path: Path) -> None:
    found = evidence(tmp_path, an_outcome(PASSED), host=GPU_HOST, gpu=True)
    run = found["predicate"]["configuration"][0]["annotations"]
    assert run["gpu"] == {"handed_over": True, "reason": ""}
    assert (run["host"]["driver"], run["host"]["gpus"]) == ("418.87.01", [V100] * 4)
    validator().validate(hexes(found))
    junit = ET.parse(tmp_path / "evidence/sif.xml")
    properties = {one.get("name"): one.get("value") for one in junit.iter("property")}
    assert properties["gpus"] == ", ".join([V100] * 4)


# The schema.


def validator() -> jsonschema.Draft7Validator:
    made = schema_of("evidence")
    jsonschema.Draft7Validator.check_schema(made)
    return jsonschema.Draft7Validator(made)


@pytest.mark.parametrize("outcome", [PASSED, SKIPPED, FAILED])
@pytest.mark.parametrize("emulator", ["", "qemu 11.1"])
def test_evidence_is_valid(outcome: str, emulator: str, tmp_path: Path) -> None:
    found = evidence(
        tmp_path, an_outcome(PASSED, "environment"), an_outcome(outcome), emulator=emulator
    )
    validator().validate(hexes(found))


Spoil = Callable[[dict[str, Any]], None]


def run_of(found: dict[str, Any]) -> dict[str, Any]:
    run: dict[str, Any] = found["predicate"]["configuration"][0]["annotations"]
    return run


def finding_of(found: dict[str, Any]) -> dict[str, Any]:
    finding: dict[str, Any] = found["predicate"]["configuration"][1]["annotations"]
    return finding


SPOILED: dict[str, Spoil] = {
    "another type": lambda found: found.update(_type="https://in-toto.io/Statement/v0.1"),
    "no subject": lambda found: found.update(subject=[]),
    "a subject without a digest": lambda found: found["subject"][0].update(digest={}),
    "a short digest": lambda found: found["subject"][0].update(digest={"sha256": "a1"}),
    "passed with a skipped check": lambda found: found["predicate"].update(result="PASSED"),
    "failed without a failed check": lambda found: found["predicate"].update(result="FAILED"),
    "emulated and no emulator": lambda found: run_of(found).update(emulated=True),
    "native and an emulator": lambda found: run_of(found).update(emulator="qemu 11.1"),
    "no time": lambda found: run_of(found).pop("finished") and None,
    "a local time": lambda found: run_of(found).update(started="2026-01-01T00:00:00+02:00"),
    "ranks of no launcher": lambda found: run_of(found)["launcher"].update(ranks=4),
    "a launcher without ranks": lambda found: run_of(found)["launcher"].update(name="srun"),
    "an unknown launcher": lambda found: run_of(found)["launcher"].update(name="ssh", ranks=4),
    "no kernel": lambda found: run_of(found)["host"].pop("kernel") and None,
    "no reason": lambda found: finding_of(found).update(reason=""),
    "another outcome": lambda found: finding_of(found).update(outcome="fine"),
    "no run": lambda found: found["predicate"]["configuration"].pop(0) and None,
    "a check without uri or digest": lambda found: (
        found["predicate"]["configuration"][1].pop("digest") and None
    ),
}


@pytest.mark.parametrize("what", SPOILED)
def test_evidence_that_is_spoiled_is_not_valid(what: str, tmp_path: Path) -> None:
    found = hexes(evidence(tmp_path, an_outcome(SKIPPED)))
    validator().validate(found)
    SPOILED[what](found)
    assert not validator().is_valid(found)


# The host.


def test_facts_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\ncpu\t\t: POWER9\n")
    (tmp_path / "os-release").write_text('NAME="x"\nPRETTY_NAME="Debian GNU/Linux 13"\n')
    found = host_facts(proc=tmp_path / "proc", etc=tmp_path)
    assert found == HostFacts(
        arch=platform.machine(),
        kernel=platform.release(),
        cpu="POWER9",
        cores=os.cpu_count() or 1,
        os="Debian GNU/Linux 13",
    )
    (tmp_path / "proc/driver/nvidia/version").write_text("")
    assert host_facts(proc=tmp_path / "proc", etc=tmp_path).driver == "loaded"
    nothing = host_facts(proc=tmp_path / "no", etc=tmp_path / "no")
    assert (nothing.cpu, nothing.os, nothing.driver) == ("unknown", "unknown", "")


def test_the_architecture_is_the_kernels(tmp_path: Path) -> None:
    """Under QEMU, `uname` says what is emulated: evidence would say that the run was native."""
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/arch").write_text("ppc64le\n")
    assert host_facts(proc=tmp_path).arch == "ppc64le"
    assert host_facts().arch == platform.machine()


# Versions as the driver's files have them; its README and issues of several projects quote them.
VERSIONS = {
    "418.87.01": "NVRM version: NVIDIA UNIX ppc64le Kernel Module  418.87.01  Thu Aug  8 15:16:59",
    "535.104.05": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15",
    "570.86.10": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_driver_and_its_gpus_are_read(version: str, tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / f"driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {V100}\nIRQ:   \t\t 16\n")
    (tmp_path / "driver/nvidia/version").write_text(VERSIONS[version] + "\nGCC version: 8.3.1\n")
    found = host_facts(proc=tmp_path)
    assert (found.driver, found.gpus) == (version, (V100, V100))
    (folder / "information").write_text("IRQ: 16\n")
    assert host_facts(proc=tmp_path).gpus == (V100, "unknown")


def test_gpus_that_disappeared_are_named() -> None:
    assert lost_gpus(GPU_HOST, GPU_HOST) == ""
    assert lost_gpus(HOST, GPU_HOST) == ""
    begin = f"a GPU disappeared during the run: {', '.join([V100] * 4)} before"
    assert lost_gpus(GPU_HOST, HOST) == f"{begin}, none after"
    two = replace(GPU_HOST, gpus=(V100,) * 2)
    assert lost_gpus(GPU_HOST, two) == f"{begin}, {V100}, {V100} after"


@pytest.mark.parametrize(
    ("check", "library", "product", "version"),
    [
        ("mpi", "Open MPI v5.0.7", "Open MPI", "5.0.7"),
        ("mpi", "MPICH 4.0.2", "MPICH", "4.0.2"),
        ("mpi", "Intel(R) MPI Library 2021.11 for Linux* OS", "Intel(R) MPI Library", "2021.11"),
        ("mpi", "unknown", "", ""),
        ("mpi", 5, "", ""),
        ("other", "Open MPI v5.0.7", "", ""),
    ],
)
def test_the_images_own_launcher_is_what_its_mpi_says(
    check: str, library: object, product: str, version: str
) -> None:
    found = images_own(
        [Outcome(check=check, outcome="failed", reason="", data={"library": library})]
    )
    assert (found.name, found.product, found.version) == ("the image's own", product, version)
    assert images_own([]).product == ""
    assert str(found) == str(images_own([])) == "the image's own"
    named = [StartedBy(name="srun", product=one, version="") for one in ("", "Slurm")]
    assert [*map(str, named)] == ["srun", "srun of Slurm"]
