"""`ci/gpu-checks`: all GPU checks on this machine itself, with what there is of a toolkit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engines

PROJECT = Path(__file__).resolve().parents[2]
GPU = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("gpu") / "evidence/here.json"
    done = subprocess.run(
        [PROJECT / "ci/gpu-checks", "--output", file],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"kept in {file}" in done.stdout
    found = json.loads(file.read_text())
    assert isinstance(found, dict)
    return found


def test_every_check_has_an_outcome(kept: dict[str, Any]) -> None:
    assert kept["schema"] == "build-images/gpu-checks/v1"
    assert kept["where"] == "on the machine itself, in no container"
    names = [one["check"] for one in kept["checks"]]
    assert names[:4] == ["cuda-runtime", "gpu-driver", "gpu-devices", "gpu-library"]
    assert {"gpu-blas", "gpu-nccl", "gpu-mpi", "gpu-control", "pytorch-gpu"} < set(names)
    assert all(one["reason"] for one in kept["checks"])


@pytest.mark.skipif(GPU, reason="there is a GPU here")
def test_a_machine_without_a_gpu_skips_all_but_the_control(kept: dict[str, Any]) -> None:
    found = {one["check"]: one for one in kept["checks"]}
    control = found.pop("gpu-control")
    assert control["outcome"] == "passed"
    assert "fails as it has to" in control["reason"]
    runtime = found.pop("cuda-runtime")  # it looks at what needs no GPU
    assert runtime["outcome"] == ("skipped" if "not made" in runtime["reason"] else "passed")
    assert {one["outcome"] for one in found.values()} == {"skipped"}
    assert found["gpu-driver"]["reason"].startswith("no GPU: no driver is loaded")
    assert kept["gpus"]["verdict"] == "unknown"


@pytest.mark.skipif(not GPU, reason="no GPU here")
def test_a_gpu_computes_right(kept: dict[str, Any]) -> None:
    outcomes = {one["check"]: one["outcome"] for one in kept["checks"]}
    layers = ("driver", "devices", "library", "found", "version")
    assert {name: outcomes[f"gpu-{name}"] for name in layers} == dict.fromkeys(layers, "passed")
