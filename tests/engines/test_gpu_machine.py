"""`ci/gpu-checks`: all GPU checks on this machine itself, with what there is of a toolkit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import PROJECT, passed, run_program

pytestmark = pytest.mark.engines

GPU = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of a run."""
    file = tmp_path_factory.mktemp("gpu") / "evidence/here.json"
    program, env = PROJECT / "ci/gpu-checks", {"PYTHON": sys.executable}
    done = passed(run_program(program, "--output", file, env=env, cwd=Path("/"), timeout_s=900))
    assert f"kept in {file}" in done.stdout
    record: dict[str, Any] = json.loads(file.read_text())
    return record


def test_every_check_has_an_outcome(record: dict[str, Any]) -> None:
    assert record["schema"] == "build-images/gpu-checks/v1"
    assert record["where"] == "on the machine itself, in no container"
    names = [check["check"] for check in record["checks"]]
    assert names[:4] == ["cuda-runtime", "gpu-driver", "gpu-devices", "gpu-library"]
    assert {"gpu-blas", "gpu-nccl", "gpu-mpi", "gpu-control", "pytorch-gpu"} < set(names)
    assert all(check["reason"] for check in record["checks"])


@pytest.mark.skipif(GPU, reason="there is a GPU here")
def test_a_machine_without_a_gpu_skips_all_but_the_control(record: dict[str, Any]) -> None:
    checks = {check["check"]: check for check in record["checks"]}
    control = checks.pop("gpu-control")
    assert control["outcome"] == "passed"
    assert "fails as it has to" in control["reason"]
    runtime = checks.pop("cuda-runtime")  # it looks at what needs no GPU
    assert runtime["outcome"] == ("skipped" if "not made" in runtime["reason"] else "passed")
    assert {check["outcome"] for check in checks.values()} == {"skipped"}
    assert checks["gpu-driver"]["reason"].startswith("no GPU: no driver is loaded")
    assert record["gpus"]["verdict"] == "unknown"


@pytest.mark.skipif(not GPU, reason="no GPU here")
def test_a_gpu_computes_right(record: dict[str, Any]) -> None:
    outcomes = {check["check"]: check["outcome"] for check in record["checks"]}
    layers = ("driver", "devices", "library", "found", "version")
    assert {name: outcomes[f"gpu-{name}"] for name in layers} == dict.fromkeys(layers, "passed")
