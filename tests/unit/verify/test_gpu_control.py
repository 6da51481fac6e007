"""The negative control: the same program in a container to which no GPU is handed over."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from test_check_outcomes import FakeRunner, a_check, a_target, done

from builder.build.engines import Tools
from builder.model import FAILED, PASSED, SKIPPED
from builder.model.errors import StepFailed
from builder.system.home import Home
from builder.system.process import Completed, Processes
from builder.verify.proof import withheld
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import Container, Kind, Runner

FAILS = done("data: {}\nwithout a GPU cuda-compute fails as it has to: CUDA error 35\n")
PASSES = done("without a GPU cuda-compute passes: it does not look at one\n", returncode=1)
NONE_FOUND = done("no GPU was given to this container\n", returncode=77)
CHECKS = (a_check("gpu-found", ("gpu",)), a_check("gpu-control", ("gpu",)))


@pytest.fixture(name="container")
def container_with_gpus(tmp_path: Path) -> Container:
    tools = Tools(processes=Processes(), home=Home(path=tmp_path))
    return Container(artifact=tmp_path, work=tmp_path, tools=tools, directory="/srv", gpu=True)


def a_kind(results: Mapping[str, Completed], opened: list[Container]) -> Kind:
    return kind_of(FakeRunner(results), opened)


def kind_of(runner: FakeRunner, opened: list[Container]) -> Kind:
    @contextlib.contextmanager
    def open_one(container: Container) -> Iterator[Runner]:
        opened.append(container)
        yield runner

    return dataclasses.replace(RUNNERS["apptainer"], open=open_one)


@pytest.mark.parametrize(("said", "outcome"), [(FAILS, PASSED), (PASSES, FAILED)])
def test_the_program_has_to_fail_in_a_container_of_its_own(
    said: Completed, outcome: str, container: Container
) -> None:
    opened: list[Container] = []
    runner = FakeRunner({"/checks/gpu-found": NONE_FOUND, "sh": said})
    [found] = withheld(a_target(*CHECKS), kind_of(runner, opened), container)
    assert runner.calls[-1] == (("sh", "/opt/build-images/src/gpu-control.sh", "start"), 60)
    assert (found.check, found.outcome) == ("gpu-withheld", outcome)
    assert found.reason == said.stdout.splitlines()[-1]
    assert opened == [dataclasses.replace(container, gpu=False)]


def test_gpus_that_are_there_all_the_same(container: Container) -> None:
    """As in Docker with NVIDIA's runtime as the usual one."""
    there = done("1 GPU: Tesla V100, compute capability 7.0\n")
    kind = a_kind({"/checks/gpu-found": there, "sh": PASSES}, [])
    [found] = withheld(a_target(*CHECKS), kind, container)
    assert found.outcome == SKIPPED
    assert found.reason == (
        "not judged: GPUs are visible without being passed: "
        "1 GPU: Tesla V100, compute capability 7.0"
    )


def test_an_image_without_the_layers_has_it_too(container: Container) -> None:
    [found] = withheld(a_target(CHECKS[1]), a_kind({"sh": FAILS}, []), container)
    assert found.outcome == PASSED


def test_a_container_that_does_not_start(container: Container) -> None:
    @contextlib.contextmanager
    def broken(_: Container) -> Iterator[Runner]:
        raise StepFailed("ch-run failed", tail=("no room",))
        yield

    kind = dataclasses.replace(RUNNERS["charliecloud"], open=broken)
    [found] = withheld(a_target(*CHECKS), kind, container)
    assert found.outcome == FAILED
    assert found.reason == "a container without GPUs could not be started: no room"


def test_where_there_is_nothing_to_withhold(container: Container) -> None:
    """Neither without GPUs, where gpu-control has seen it, nor without that check."""
    kind = a_kind({}, [])
    assert withheld(a_target(*CHECKS), kind, dataclasses.replace(container, gpu=False)) == ()
    assert withheld(a_target(CHECKS[0]), kind, container) == ()
