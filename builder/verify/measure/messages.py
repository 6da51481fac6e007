"""Memory and messages: the checks' own programs, and the OSU micro-benchmarks.

OSU's output is a table of sizes and values below comments:
https://mvapich.cse.ohio-state.edu/benchmarks/
"""

from __future__ import annotations

import re

from builder.verify.container_output import data_of
from builder.verify.measure.measurement import Quantity, Unreadable, number

MEMORY_TRIAD = Quantity(
    name="memory_triad",
    title="triad from memory, all threads",
    unit="GB/s",
    metric="memory_triad_bytes_per_second",
    scale=1e9,
)
SPEED = (
    Quantity(
        name="mpi_latency",
        title="MPI latency, 1 B",
        unit="µs",
        metric="mpi_latency_seconds",
        scale=1e-6,
        more_is_better=False,
    ),
    Quantity(
        name="mpi_bandwidth",
        title="MPI bandwidth, largest message",
        unit="MB/s",
        metric="mpi_bandwidth_bytes_per_second",
        scale=1e6,
    ),
    Quantity(
        name="mpi_allreduce",
        title="MPI allreduce, 8 B",
        unit="µs",
        metric="mpi_allreduce_seconds",
        scale=1e-6,
        more_is_better=False,
    ),
)
_OSU_LATENCY = Quantity(
    name="osu_latency",
    title="OSU: latency, 8 B",
    unit="µs",
    metric="osu_latency_seconds",
    scale=1e-6,
    more_is_better=False,
)
_OSU_BANDWIDTH = Quantity(
    name="osu_bandwidth",
    title="OSU: bandwidth, largest message",
    unit="MB/s",
    metric="osu_bandwidth_bytes_per_second",
    scale=1e6,
)
_OSU_ALLREDUCE = Quantity(
    name="osu_allreduce",
    title="OSU: allreduce, 8 B",
    unit="µs",
    metric="osu_allreduce_seconds",
    scale=1e-6,
    more_is_better=False,
)
# Programs with their folders below mpi/ of libexec/osu-micro-benchmarks.
OSU = (
    ("osu_latency", "pt2pt", _OSU_LATENCY),
    ("osu_bw", "pt2pt", _OSU_BANDWIDTH),
    ("osu_allreduce", "collective", _OSU_ALLREDUCE),
)
_OSU_ROW = re.compile(r"^(\d+)\s+(\d+(?:\.\d+)?)\s*$", re.MULTILINE)
_SMALL = 8


def read_memory_speed(text: str) -> dict[str, float]:
    """The triad of memory-speed, in GB/s."""
    return {MEMORY_TRIAD.name: number(data_of(text).get("triad_gb_per_s"), "triad")}


def read_mpi_speed(text: str) -> dict[str, float]:
    """What mpi-speed says of its smallest and its largest messages."""
    data = data_of(text)
    if data.get("ranks") != 2:  # noqa: PLR2004 - as it was started
        raise Unreadable(f"it ran on {data.get('ranks')} ranks, not on 2")
    return {
        "mpi_latency": number(data.get("latency_us"), "latency"),
        "mpi_bandwidth": number(data.get("mb_per_s"), "bandwidth"),
        "mpi_allreduce": number(data.get("allreduce_us"), "allreduce"),
    }


def read_osu(text: str, quantity: Quantity) -> dict[str, float]:
    """A bandwidth at the largest size of the table, a time at 8 bytes."""
    rows = {int(size): value for size, value in _OSU_ROW.findall(text)}
    size = max(rows, default=0) if quantity.more_is_better else _SMALL
    return {quantity.name: number(rows.get(size), f"value for {size} bytes")}
