"""Measurements for tests: what real programs printed, and values made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from builder.model.measurement import (
    GpuUse,
    HostFacts,
    Measured,
    OneRun,
    PlaceFacts,
    ProgramRun,
    Quantity,
    Sample,
    Use,
)
from builder.verify.measure.programs import PROGRAMS
from builder.verify.measure.rounds import rows_of

RECORDED = Path(__file__).resolve().parents[1] / "data" / "measure"
PLACES = ("bare", "oci", "sif")
HOST = HostFacts(arch="x86_64", kernel="6.1", cpu='EPYC "Rome"', cores=64, os="Debian 12")
USE = Use(
    seconds=2.5,
    cpu=0.5,
    memory_bytes=3_000_000_000,
    gpus=(GpuUse(index=0, busy=0.9, memory_bytes=1_000_000_000, power_w=250.0),),
    samples=(Sample(at_s=0.5, cpu=0.5, memory_bytes=3_000_000_000),),
)
PROGRAM_BY_NAME = {each.name: each for each in PROGRAMS}
QUANTITIES: Mapping[str, Quantity] = {
    quantity.name: quantity for program in PROGRAMS for quantity in program.quantities
}


def recorded(name: str) -> str:
    """What a program printed on a real machine; those of GPUs have made-up numbers."""
    return (RECORDED / f"{name}.txt").read_text()


def run(
    place: str, values: Mapping[str, float], *, turn: int = 0, program: str = "mpi-speed"
) -> OneRun:
    return OneRun(round=turn, place=place, program=program, use=USE, values=values)


def speeds(latency: float, bandwidth: float = 1000.0, allreduce: float = 2.0) -> dict[str, float]:
    """What mpi-speed finds."""
    return {
        "mpi_latency": latency,
        "mpi_bandwidth": bandwidth,
        "mpi_allreduce": allreduce,
    }


def measured(*runs: OneRun, emulator: str = "", places: tuple[str, ...] = PLACES) -> Measured:
    """A measurement with these runs; of three rounds of mpi-speed, if none are given."""
    all_runs = runs or tuple(
        run(place, speeds(latency), turn=turn)
        for turn in range(3)
        for place, latency in (("bare", 1.0), ("oci", 1.1), ("sif", 0.9 + turn / 10))
    )
    names = dict.fromkeys(each.program for each in all_runs)
    runners = {"bare": "chroot", "oci": "buildah", "sif": "apptainer"}
    return Measured(
        image="hpc-bench-1.0-debian13-openmpi5.0-x86_64",
        arch="x86_64",
        host=HOST,
        emulator=emulator,
        bare="the image's root file system, unpacked and entered by chroot",
        started="2026-01-02T03:04:05+00:00",
        finished="2026-01-02T03:14:05+00:00",
        repeats=1 + max(each.round for each in all_runs),
        sizes={"hpl": 2048},
        places=tuple(PlaceFacts(name=each, runner=runners[each], version="1.2") for each in places),
        rows=rows_of(all_runs, [PROGRAM_BY_NAME[name] for name in names], places),
        runs=all_runs,
    )


PROGRAM_RUN = ProgramRun(
    image="hpc-base-1.0-debian13-x86_64",
    arch="x86_64",
    content_key="c" * 64,
    digest="sha256:" + "d" * 64,
    place=PlaceFacts(name="oci", runner="buildah", version="1.39"),
    argv=("OMP_NUM_THREADS=4", "/opt/train", "--epochs=2"),
    binds=("/data",),
    host=HOST,
    emulator="",
    no_gpu="",
    started="2026-01-02T09:00:00+00:00",
    finished="2026-01-02T09:00:45+00:00",
    status=0,
    start_s=0.512,
    cpu_seconds=80.0,
    runtime_cpu_seconds=0.21,
    use=replace(
        USE,
        samples=tuple(
            Sample(at_s=at_s, cpu=at_s / 2.5, memory_bytes=int(at_s * 1e9), gpus=USE.gpus)
            for at_s in (0.5, 1.0, 2.5)
        ),
    ),
)
