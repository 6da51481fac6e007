"""Output of a measurement: tables of ratios and of resource use, a plot, and Prometheus metrics.

The metrics are for the node exporter's textfile collector:
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from builder.model import FAILED, Outcome
from builder.model.errors import counted
from builder.model.measurement import BARE, Completion, HostFacts, Measured, PlaceFacts, Row, Use
from builder.model.records import read

_PREFIX = "build_images_bench"


def as_text(measured: Measured) -> str:
    """Return the tables, with the outcome of each format below them."""
    return "\n".join(
        [
            *_head(measured),
            "",
            *_ratios(measured),
            "",
            "The median of bare, and the speed of each format as a share of bare's in the same",
            "round: median (lowest to highest). More is faster, also where the unit is a time.",
            "",
            *_completions(measured),
            "",
            *(
                f"{place}: {check.check} {check.outcome}: {check.reason}"
                for place, check in measured.outcomes.items()
            ),
        ]
    )


def _head(measured: Measured) -> Iterator[str]:
    host = measured.host
    ran = f"emulated by {measured.emulator}, bare as well" if measured.emulator else "native"
    yield f"{measured.image}: {counted(measured.repeats, 'round')}, {ran}"
    yield f"{host.cpu}, {counted(host.cores, 'core')}, {host.os}, {host.kernel}"
    yield f"bare: {measured.bare}"
    if measured.is_disturbed:
        shares = ", ".join(f"{share:.0%}" for share in measured.others)
        yield f"DISTURBED: other processes kept the cores busy before the rounds: {shares}"
    if measured.no_gpus:
        yield f"GPUs NOT SAMPLED, or not to the end: {measured.no_gpus}"


def _ratios(measured: Measured) -> list[str]:
    places = [place for place in measured.places if place.name != BARE]
    titles = [f"{place.name} ({place.runner} {place.version})" for place in places]
    table = [["", "bare", *titles]]
    for rows in by_quantity(measured.rows):
        bare = rows[BARE]
        cells = [_ratio(rows[place.name], measured.floor) for place in places]
        table.append([bare.quantity.title, bare.text, *cells])
    return _aligned(table)


def _ratio(row: Row, floor: float) -> str:
    if row.problem or row.ratio is None:
        return "no result"
    return f"{row.ratio}{'  COLLAPSED' if row.collapse(floor) else ''}"


def _completions(measured: Measured) -> list[str]:
    """Return medians over the rounds of one program in one place."""
    table = [["run to completion", "time", "cores busy", "memory", "GPUs busy"]]
    for completion in measured.completions:
        name = f"{completion.program}, {completion.place}"
        table.append([name, *completion.cells])
    return _aligned(table)


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def by_quantity(rows: Sequence[Row]) -> list[dict[str, Row]]:
    """Return the rows of each quantity, by place."""
    quantities: dict[str, dict[str, Row]] = {}
    for row in rows:
        quantities.setdefault(row.quantity.name, {})[row.place] = row
    return [*quantities.values()]


# ---- The plot: shares of bare's speed, which the report's template draws ----

TICK = 0.25  # between ticks of the axis, in shares of bare
_LEAST, _MOST = 1.25, 2.0  # of the axis


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """The shown parts of a measurement in a manifest (`Measured.as_json`)."""

    host: HostFacts
    emulator: str
    bare: str
    started: str
    repeats: int
    floor: float
    places: tuple[PlaceFacts, ...]
    rows: tuple[Row, ...]
    outcomes: Mapping[str, Outcome]
    completions: tuple[Completion, ...] = ()

    @property
    def formats(self) -> list[str]:
        return [place.name for place in self.places if place.name != BARE]

    @property
    def quantities(self) -> list[dict[str, Row]]:
        """The rows of each quantity by place, bare first."""
        return by_quantity(self.rows)

    @property
    def ticks(self) -> list[float]:
        """The ticks of the axis, up to the highest value (within bounds)."""
        highest = max((row.ratio.highest for row in self.rows if row.ratio), default=_LEAST)
        last = math.ceil(min(max(highest, _LEAST), _MOST) / TICK)
        return [number * TICK for number in range(last + 1)]

    @property
    def caption(self) -> str:
        host = self.host
        ran = f"emulated by {self.emulator}, bare as well" if self.emulator else "native"
        return (
            f"{self.repeats} alternating rounds, {ran}, {self.started[:10]}; {host.cpu}, "
            f"{host.cores} cores, {host.os}, {host.kernel}. Bare: {self.bare}."
        )

    @property
    def about(self) -> str:
        """The plot in words, for screen readers."""
        collapsed = [name for name, check in self.outcomes.items() if check.outcome == FAILED]
        outcome = f"collapsed: {', '.join(collapsed)}" if collapsed else "none collapsed"
        return (
            f"Speed in {', '.join(self.formats)} as a share of bare's, for each quantity the "
            f"median and the range of the rounds; {outcome}. The table below has the numbers."
        )


def plot_of(document: Mapping[str, object] | None) -> Plot | None:
    """Return the plot of a manifest's measurement, if it has one."""
    return read(Plot, document, "measured") if document else None


# ---- Prometheus ----

# A metric's name, its help text, labels and a value.
_Sample = tuple[str, str, Mapping[str, str], float]


def exposition(measured: Measured) -> str:
    """Return all figures in base units, medians over the rounds; ends with a line feed."""
    from prometheus_client import (  # noqa: PLC0415 - slow to import
        CollectorRegistry,
        Gauge,
        generate_latest,
    )

    common = {
        "image": measured.image,
        "arch": measured.arch,
        "emulated": "true" if measured.emulator else "false",
    }
    registry, gauges = CollectorRegistry(), dict[str, Gauge]()
    for name, about, labels, value in _samples(measured):
        if name not in gauges:
            names = (*common, *labels)
            gauges[name] = Gauge(f"{_PREFIX}_{name}", about, names, registry=registry)
        gauges[name].labels(**common, **labels).set(value)
    return generate_latest(registry).decode()


def _samples(measured: Measured) -> Iterator[_Sample]:
    for row in measured.rows:
        if row.values:
            value = row.values.median * row.quantity.scale
            yield row.quantity.metric, f"{row.quantity.title}, median", {"place": row.place}, value
    share = "Speed as a share of bare's"
    for row in measured.rows:
        if row.ratio:
            labels = {"place": row.place, "quantity": row.quantity.name}
            yield "speed_ratio", f"{share}, median of the rounds", labels, row.ratio.median
            yield "speed_lowest_ratio", f"{share}, slowest round", labels, row.ratio.lowest
            yield "speed_highest_ratio", f"{share}, fastest round", labels, row.ratio.highest
    if measured.others:
        busy = statistics.median(measured.others)
        yield "others_busy_ratio", "Share of the cores that other processes kept busy", {}, busy
    for place, check in measured.outcomes.items():
        about = "1 if a figure is far below bare's or missing"
        yield "collapsed", about, {"place": place}, float(check.outcome == "failed")
    # The last round in which each program ran in each place.
    last = {(run.program, run.place): run.use for run in measured.runs if not run.problem}
    for program, place in sorted(last):
        yield from _samples_of_use(last[program, place], {"program": program, "place": place})
    finished = dt.datetime.fromisoformat(measured.finished).timestamp()
    yield "finished_timestamp_seconds", "When the measurement ended, in Unix time", {}, finished


def _samples_of_use(use: Use, labels: Mapping[str, str]) -> Iterator[_Sample]:
    yield "run_seconds", "Time to completion of the last run", labels, use.seconds
    yield "run_cpu_busy_ratio", "Share of the time that all cores were busy", labels, use.cpu
    about = "Most memory in use on the machine"
    yield "run_memory_peak_bytes", about, labels, use.memory_bytes
    for gpu in use.gpus:
        for name, about, value in (
            ("run_gpu_busy_ratio", "Share of the time that the GPU was busy", gpu.busy),
            ("run_gpu_memory_peak_bytes", "Most memory in use on the GPU", gpu.memory_bytes),
            ("run_gpu_power_peak_watts", "Most power that the GPU drew", gpu.power_w),
        ):
            if value is not None:
                yield name, about, {**labels, "gpu": str(gpu.index)}, value
