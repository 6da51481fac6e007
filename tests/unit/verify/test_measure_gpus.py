"""GPUs during a measurement: asked by one process, and no more after a fault or a silence."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from fake_nvml import fake_nvml

from builder.model.errors import StepFailed
from builder.model.measurement import GpuUse
from builder.system.nvml import watcher
from builder.system.process import Processes
from builder.verify.measure.sampling import Gpus, gpu_sampler


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fake_nvml(tmp_path_factory.mktemp("nvml"))


def until_problem(gpus: Gpus) -> list[tuple[GpuUse, ...]]:
    """What looks find until there is a problem, and for a moment after."""
    looks, end = [], time.monotonic() + 15
    while not gpus.problem and time.monotonic() < end:
        looks.append(gpus.look())
        time.sleep(0.05)
    assert [gpus.look() for _ in range(3)] == [()] * 3
    return looks


def test_one_process_begins_once_and_goes_on_to_answer(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML", "once=1,count=2,use0=40,use1=-3,power=250000")
    processes = Processes()
    with Gpus(processes, library=library) as gpus:
        first = gpus.look()
        time.sleep(1.2)
        second = gpus.look()
    assert first == second
    assert first == (
        GpuUse(index=0, busy=0.4, memory_bytes=1048576, power_w=250.0),
        GpuUse(index=1, busy=None, memory_bytes=1048576, power_w=250.0),
    )
    assert gpus.problem == ""
    assert not processes._running  # ended with the measurement


def test_a_gpu_that_is_lost_meanwhile(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML", "after=2,lost=15")
    with Gpus(Processes(), library=library) as gpus:
        assert any(until_problem(gpus))
    assert gpus.problem == "nvmlDeviceGetUtilizationRates: NVML_ERROR_GPU_IS_LOST"


def test_a_gpu_that_hangs_meanwhile_holds_nobody_up(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML", "after=1")
    monkeypatch.setattr("builder.verify.measure.sampling._END_S", 0.1)
    processes, before = Processes(), {*threading.enumerate()}
    with Gpus(processes, library=library, silence_s=1) as gpus:
        assert all(one.daemon for one in {*threading.enumerate()} - before)
        begin = time.monotonic()
        looks = until_problem(gpus)
        slowest = time.monotonic() - begin
    assert any(looks)
    assert slowest < 5
    assert gpus.problem == "no answer for 1 s"
    processes.stop()


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("sleep=60", "no answer within 1 s"),
        ("crash=1", "the sampling process: ended by SIGSEGV"),
        ("init=18", "nvmlInit: NVML_ERROR_LIB_RM_VERSION_MISMATCH"),
        ("handle=15", "nvmlDeviceGetHandleByIndex: NVML_ERROR_GPU_IS_LOST"),
    ],
)
def test_gpus_that_cannot_be_asked_at_all(
    library: str, monkeypatch: pytest.MonkeyPatch, fault: str, problem: str
) -> None:
    monkeypatch.setenv("FAKE_NVML", fault)
    monkeypatch.setattr("builder.verify.measure.sampling._END_S", 0.1)
    processes = Processes()
    with Gpus(processes, library=library, begin_s=1 if "sleep" in fault else 30) as gpus:
        assert gpus.problem == problem
        assert gpus.look() == ()
    processes.stop()


def test_gpus_are_asked_where_there_is_a_driver(
    tmp_path: Path,
) -> None:
    with gpu_sampler(Processes(), proc=tmp_path) as gpus:
        assert (gpus.look(), gpus.problem) == ((), "")
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text("NVRM version: Kernel Module  535.104.05\n")
    with gpu_sampler(Processes(), proc=tmp_path) as gpus:
        assert gpus.problem.startswith("libnvidia-ml.so.1: cannot open")


def test_who_asks_ends_when_nobody_reads(library: str) -> None:
    processes = Processes()
    ended = pytest.raises(StepFailed, match="ended by SIGPIPE")
    with ended, processes.reading_from(watcher(library)) as lines:
        assert json.loads(lines.readline())[0]["index"] == 0
        [child] = processes._running
        lines.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
