"""An image measured in all of its formats, by runners that are made up: what is left of it."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from measure_samples import recorded
from test_proving import Machine, machine, manifest, write  # noqa: F401 - two are fixtures

from builder.model.errors import BadInput
from builder.system.process import Completed
from builder.system.terminal import Progress
from builder.verify.measure import rounds
from builder.verify.measure.programs import PROGRAMS
from builder.verify.measure.rounds import measure, run_rounds
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import DATA_AT, Container
from builder.verify.runners.sites import bare_kind


class Prints:
    """A runner in which programs print what they really printed."""

    def __init__(self, held: Sequence[str], started: list[str]) -> None:
        self._held, self._started = held, started

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        del timeout_s
        script = argv[2]
        self._started.append(script)
        if "command -v" in script:
            paths = [each.path for each in PROGRAMS if each.name in self._held]
            output = "\n".join(path for path in paths if path in argv)
        else:
            [program] = [each for each in PROGRAMS if each.name in script]
            output = recorded(program.name)
        return Completed(argv=tuple(argv), returncode=0, stdout=output)


@pytest.fixture
def held() -> list[str]:
    """The programs that the image holds."""
    return ["memory-speed", "mpi-speed"]


@pytest.fixture(name="started")
def programs_started(
    machine: Machine,  # noqa: F811 - a fixture
    held: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    started: list[str] = []

    @contextlib.contextmanager
    def opened(container: Container) -> Iterator[Any]:
        machine.opened.append(container)
        assert (
            container.binds[DATA_AT].stat().st_mode & 0o7777 == 0o1777
        )  # each has a user of its own
        yield Prints(held, started)

    for name, kind in [*RUNNERS.items()]:
        monkeypatch.setitem(RUNNERS, name, replace(kind, open=opened))
    monkeypatch.setattr(
        rounds, "bare_kind", lambda variables: replace(bare_kind(variables), open=opened)
    )
    quiet = functools.partial(run_rounds, others=lambda: 0.0)
    monkeypatch.setattr(rounds, "run_rounds", quiet)
    return started


def of_cell(manifest: dict[str, Any], mpi: str) -> dict[str, Any]:  # noqa: F811
    return {**manifest, "cell": {**manifest["cell"], "mpi": mpi}}


def test_an_image_is_measured_in_all_places(
    machine: Machine,  # noqa: F811
    manifest: dict[str, Any],  # noqa: F811
    started: list[str],
) -> None:
    write(machine, of_cell(manifest, "openmpi5.0"))
    machine.opened.clear()
    measured, updated = measure(machine.run, machine.folder, runners=(), repeats=2)
    assert [place.name for place in measured.places] == ["bare", "oci", "sif", "charliecloud"]
    assert [place.version for place in measured.places] == [
        "chroot of this machine",
        *("1.28.2", "1.3.0", "0.38"),
    ]
    assert len(measured.runs) == 2 * 2 * 4
    assert not [each for each in measured.runs if each.problem]
    assert measured.sizes["hpl"] == 2048
    root = "the image's root file system, unpacked and entered by chroot"
    assert measured.bare == root + " in a user namespace" * (os.geteuid() != 0)
    assert next(script for script in started if "mpi-speed" in script) == (
        "exec mpirun --allow-run-as-root --oversubscribe -n 2 mpi-speed 4194304 1000"
    )
    assert {container.directory for container in machine.opened} == {"/srv"}
    assert len({container.binds[DATA_AT] for container in machine.opened}) == 1
    assert (measured.emulator, measured.repeats, measured.arch) == ("", 2, "x86_64")
    names = [f"evidence/{name}-bench.json" for name in ("charliecloud", "oci", "sif")]
    assert sorted({*updated.evidence} - {*manifest["evidence"]}) == names
    for name in names:
        statement = json.loads((machine.folder / name).read_text())
        assert statement["predicate"]["passedTests"] == ["collapse"]
        form = name.removeprefix("evidence/").removesuffix("-bench.json")
        about = statement["predicate"]["configuration"][0]["annotations"]
        [place] = [place for place in measured.places if place.name == form]
        assert about["runner"] == {"name": place.runner, "version": place.version}
        assert (about["format"], about["emulated"]) == (form, False)
        assert (about["started"], about["finished"]) == (measured.started, measured.finished)
        assert (about["tools"], about["host"]["os"]) == (machine.run.versions, "Debian 12")
        assert about["gpu"] == {"handed_over": False, "reason": "no measured program uses a GPU"}
    assert updated.outcome == manifest["outcome"]
    kept = json.loads((machine.folder / "manifest.json").read_text())["measured"]
    assert kept["repeats"] == 2
    assert "runs" not in kept


def test_without_an_mpi_no_program_is_started_by_one(
    machine: Machine,  # noqa: F811
    manifest: dict[str, Any],  # noqa: F811
    started: list[str],
) -> None:
    write(machine, manifest)
    host, said = replace(machine.run.host, arch="aarch64"), io.StringIO()
    machine.run = replace(machine.run, host=host, progress=Progress(stream=said))
    measured, _ = measure(machine.run, machine.folder, runners=["docker"], repeats=1)
    assert [place.name for place in measured.places] == ["bare", "oci-docker"]
    assert {each.program for each in measured.runs} == {"memory-speed"}
    assert started[-1] == "exec memory-speed 32 5"
    assert measured.emulator == "qemu 9.2"
    steps = ("unpacking for bare", "unpacking for docker", "round 1 of 1: memory-speed")
    lines = [line.partition("] ")[2] for line in said.getvalue().splitlines()]
    assert lines == [f"{measured.image}: {step}" for step in steps]


def test_what_cannot_be_measured_is_bad_input(
    machine: Machine,  # noqa: F811
    manifest: dict[str, Any],  # noqa: F811
    held: list[str],
    started: list[str],
) -> None:
    held.clear()
    write(machine, manifest)
    with pytest.raises(BadInput, match="has none of the benchmark programs") as refused:
        measure(machine.run, machine.folder, runners=(), repeats=1)
    assert "add hpcc or memory-speed or mpi-speed" in refused.value.hint
    artifacts = {"oci": manifest["artifacts"]["oci"]}
    write(machine, {**manifest, "artifacts": artifacts})
    with pytest.raises(BadInput, match="the image has no charliecloud tarball, which the bare run"):
        measure(machine.run, machine.folder, runners=(), repeats=1)
    assert len(started) == 1
