"""The programs that measure: what each finds, how it is started, and how its output is read.

HPC Challenge (HPL, DGEMM, STREAM and ping-pong): https://hpcchallenge.org/hpcc/faq/ and README.txt
of its sources. OSU micro-benchmarks: https://mvapich.cse.ohio-state.edu/benchmarks/. fio writes a
file and reads it, in order and at random. memory-speed and mpi-speed are the checks' own programs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.verify.container_output import data_of
from builder.verify.measure.measurement import Quantity
from builder.verify.runners.protocol import DATA_AT

RANKS = 2
_DEPTH = 16  # reads at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The amount of work of the programs, for runs of some seconds each.

    `hpl` is the order of HPL's matrix. HPC Challenge's arrays follow from it, and fit into caches
    where it is small. `memory_mib` is one of three arrays. `largest` are the bytes of the largest
    message, `rounds` the repetitions of small ones. `file_mib` is what fio writes and reads, and
    `seconds` how long it reads at random.
    """

    hpl: int = 2048
    memory_mib: int = 256
    largest: int = 1 << 22
    rounds: int = 1000
    file_mib: int = 128
    seconds: int = 2


# Emulated code takes 10 to 100 times as long.
EMULATED = Sizes(hpl=192, memory_mib=32, largest=1 << 20, rounds=100, file_mib=64, seconds=2)


class Unreadable(Exception):
    """A program printed something else than its figures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program that may be in an image.

    `path` is what must be there; `script` is for sh(1), from the sizes and the launcher of two
    ranks; `read` makes values by quantity of what it prints, and raises `Unreadable`.
    """

    name: str
    path: str
    quantities: tuple[Quantity, ...]
    script: Callable[[Sizes, str], str]
    read: Callable[[str], Mapping[str, float]]
    needs_mpi: bool = False


# Prometheus' name of a unit's base unit, and what a value is multiplied by to be in that.
_BASE_UNITS = {
    "GFlop/s": ("flops_per_second", 1e9),
    "GB/s": ("bytes_per_second", 1e9),
    "MB/s": ("bytes_per_second", 1e6),
    "IOPS": ("reads_per_second", 1.0),
    "µs": ("seconds", 1e-6),
}


def _quantity(name: str, title: str, unit: str, metric: str = "") -> Quantity:
    base_unit, scale = _BASE_UNITS[unit]
    return Quantity(
        name=name,
        title=title,
        unit=unit,
        metric=f"{metric or name}_{base_unit}",
        scale=scale,
        more_is_better=unit != "µs",
    )


def _number(value: object, name: str) -> float:
    """Return a figure, which has to be above zero; raises `Unreadable`."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise Unreadable(f"it gives no {name}: {str(value)[:40]!r}") from None
    if not math.isfinite(number) or number <= 0:
        raise Unreadable(f"its {name} is {value}")
    return number


def _script(name: str, **values: object) -> str:
    text = (Path(__file__).parent / f"{name}.sh.in").read_text(encoding="utf-8")
    return text.format(folder=DATA_AT, **values)


# ---- HPC Challenge ----

_HPCC = (
    _quantity("hpcc_dgemm", "hpcc: DGEMM, on each core at once", "GFlop/s"),
    _quantity("hpcc_hpl", "hpcc: HPL, 2 ranks", "GFlop/s"),
    _quantity(
        "hpcc_triad", "hpcc: STREAM triad, on each core at once", "GB/s", "hpcc_stream_triad"
    ),
    _quantity("hpcc_latency", "hpcc: ping-pong latency, 8 B", "µs", "hpcc_ping_pong_latency"),
    _quantity(
        "hpcc_bandwidth", "hpcc: ping-pong bandwidth, 2 MB", "GB/s", "hpcc_ping_pong_bandwidth"
    ),
)
# Lines of the summary; HPL's is in TFlop/s.
_SUMMARY = {
    "hpcc_dgemm": ("StarDGEMM_Gflops", 1.0),
    "hpcc_hpl": ("HPL_Tflops", 1000.0),
    "hpcc_triad": ("StarSTREAM_Triad", 1.0),
    "hpcc_latency": ("AvgPingPongLatency_usec", 1.0),
    "hpcc_bandwidth": ("AvgPingPongBandwidth_GBytes", 1.0),
}


def _hpcc_script(sizes: Sizes, launch: str) -> str:
    """Run one thread a rank on an input for HPL: https://www.netlib.org/benchmark/hpl/tuning.html"""
    return _script(
        "hpcc", order=sizes.hpl, block=min(128, sizes.hpl // 2), ranks=RANKS, launch=launch
    )


def _read_hpcc(text: str) -> dict[str, float]:
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    summary = {name.strip(): value.strip() for name, _, value in pairs}
    if summary.get("Success") != "1":
        raise Unreadable(f"it says Success={summary.get('Success', 'nothing')}")
    _check_ranks(summary.get("CommWorldProcs"))
    return {
        quantity: _number(summary.get(name, ""), name) * scale
        for quantity, (name, scale) in _SUMMARY.items()
    }


def _check_ranks(ranks: object) -> None:
    if str(ranks) != str(RANKS):
        raise Unreadable(f"it ran on {ranks} ranks, not on {RANKS}")


# ---- The checks' own programs ----

_MEMORY_TRIAD = _quantity("memory_triad", "triad from memory, all threads", "GB/s")
_MPI_SPEED = (
    _quantity("mpi_latency", "MPI latency, 1 B", "µs"),
    _quantity("mpi_bandwidth", "MPI bandwidth, largest message", "MB/s"),
    _quantity("mpi_allreduce", "MPI allreduce, 8 B", "µs"),
)


def _read_mpi_speed(text: str) -> dict[str, float]:
    data = data_of(text)
    _check_ranks(data.get("ranks"))
    return {
        "mpi_latency": _number(data.get("latency_us"), "latency"),
        "mpi_bandwidth": _number(data.get("mb_per_s"), "bandwidth"),
        "mpi_allreduce": _number(data.get("allreduce_us"), "allreduce"),
    }


# ---- OSU ----

_OSU_ROW = re.compile(r"^(\d+)\s+(\d+(?:\.\d+)?)\s*$", re.MULTILINE)
_SMALL = 8


def _osu(name: str, folder: str, quantity: Quantity) -> Program:
    """Return one of the OSU micro-benchmarks, as recipe hpc-bench-osu installs them."""
    path = f"/usr/local/osu/libexec/osu-micro-benchmarks/mpi/{folder}/{name}"

    def read(text: str) -> dict[str, float]:
        """Return a bandwidth at the largest size of the table, a time at 8 bytes."""
        rows = {int(size): value for size, value in _OSU_ROW.findall(text)}
        size = max(rows, default=0) if quantity.more_is_better else _SMALL
        return {quantity.name: _number(rows.get(size), f"value for {size} bytes")}

    return Program(
        name=name,
        path=path,
        quantities=(quantity,),
        script=lambda sizes, launch: f"exec {launch} {path} -m 1:{sizes.largest} -i {sizes.rounds}",
        read=read,
        needs_mpi=True,
    )


# ---- fio ----

_FIO = (
    _quantity("fio_write", "fio: write in order", "MB/s"),
    _quantity("fio_read", "fio: read in order", "MB/s"),
    _quantity("fio_random", "fio: random 4 KiB reads, 1 at a time", "IOPS"),
    _quantity("fio_random_deep", f"fio: random 4 KiB reads, {_DEPTH} at a time", "IOPS"),
)


def _fio_script(sizes: Sizes, _launch: str) -> str:
    """Run four jobs after each other on one file, past the page cache (O_DIRECT).

    psync asks nothing of the kernel that a container or an emulator could forbid (io_uring, aio);
    so reads at once are threads.
    """
    return _script("fio", mebibytes=sizes.file_mib, seconds=sizes.seconds, depth=_DEPTH)


def _read_fio(text: str) -> dict[str, float]:
    """Read fio's JSON; before it stand notes."""
    try:
        jobs = {job["jobname"]: job for job in json.loads(text[text.index("{") :])["jobs"]}
        for name, job in jobs.items():
            if job["error"]:
                raise Unreadable(f"its job {name} has the error {job['error']}")
        return {
            "fio_write": _number(jobs["fio_write"]["write"]["bw_bytes"], "write") / 1e6,
            "fio_read": _number(jobs["fio_read"]["read"]["bw_bytes"], "read") / 1e6,
            "fio_random": _number(jobs["fio_random"]["read"]["iops"], "fio_random"),
            "fio_random_deep": _number(jobs["fio_random_deep"]["read"]["iops"], "fio_random_deep"),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"this is not the JSON of its four jobs ({error!r})") from None


PROGRAMS = (
    Program(
        name="hpcc",
        path="hpcc",
        quantities=_HPCC,
        script=_hpcc_script,
        read=_read_hpcc,
        needs_mpi=True,
    ),
    Program(
        name="memory-speed",
        path="memory-speed",
        quantities=(_MEMORY_TRIAD,),
        script=lambda sizes, _launch: f"exec memory-speed {sizes.memory_mib} 5",
        read=lambda text: {"memory_triad": _number(data_of(text).get("triad_gb_per_s"), "triad")},
    ),
    Program(
        name="mpi-speed",
        path="mpi-speed",
        quantities=_MPI_SPEED,
        script=lambda sizes, launch: f"exec {launch} mpi-speed {sizes.largest} {sizes.rounds}",
        read=_read_mpi_speed,
        needs_mpi=True,
    ),
    _osu("osu_latency", "pt2pt", _quantity("osu_latency", "OSU: latency, 8 B", "µs")),
    _osu("osu_bw", "pt2pt", _quantity("osu_bandwidth", "OSU: bandwidth, largest message", "MB/s")),
    _osu("osu_allreduce", "collective", _quantity("osu_allreduce", "OSU: allreduce, 8 B", "µs")),
    Program(name="fio", path="fio", quantities=_FIO, script=_fio_script, read=_read_fio),
)
