"""Output of a measurement: tables of ratios and of resource use, a plot, and Prometheus metrics.

The metrics are for the node exporter's textfile collector:
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from builder.model import FAILED, Outcome
from builder.model.errors import counted
from builder.model.measurement import (
    BARE,
    Completion,
    GpuUse,
    HostFacts,
    Measured,
    PlaceFacts,
    ProgramRun,
    Row,
    Use,
    megabytes,
    program_of,
)
from builder.model.records import read

_PREFIX, _RUN_PREFIX = "build_images_bench", "build_images"
T = TypeVar("T")
_COMPARED_S = 0.5  # a shorter run says nothing about the overhead


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


# ---- The run of a user's program ----


def text_of_run(run: ProgramRun, recorded: Iterable[ProgramRun] = ()) -> str:
    """Return what a run took, and the median time of each format compared with bare's."""
    use, place = run.use, run.place
    runner = f"{place.runner} {place.version}".strip()
    where = f"{place.name} ({', '.join(filter(None, [runner, run.emulator]))})"
    cores = f"{use.cpu:.0%} of {counted(run.host.cores, 'core')}"
    lines = [
        f"{run.image}, {where}: {use.seconds:.2f} s, exit status {run.status}",
        f"processor {run.cpu_seconds:.2f} s ({cores}), memory {megabytes(use.peak_bytes)}",
        f"runtime: {run.start_s:.2f} s to start, processor {run.runtime_cpu_seconds:.2f} s",
        *map(str, use.gpus),
        *([f"GPUs NOT SAMPLED, or not to the end: {use.no_gpus}"] if use.no_gpus else []),
        *_against_bare(run, [each for each in recorded if each.is_like(run)]),
    ]
    return "\n  ".join(lines)


def _against_bare(run: ProgramRun, like: Sequence[ProgramRun]) -> Iterator[str]:
    """Yield how a run's format compares with bare; of a bare run, how each format does."""
    times: dict[str, list[tuple[float, float]]] = {}
    for each in like:
        times.setdefault(each.place.name, []).append((each.use.seconds, each.cpu_seconds))
    medians = {
        name: [*map(statistics.median, zip(*pairs, strict=True))] for name, pairs in times.items()
    }
    bare = medians.pop(BARE, [])
    for name, values in medians.items():
        if bare and bare[0] >= _COMPARED_S and run.place.name in {BARE, name}:
            time, processor = map(_change, values, bare)
            runs = f"{len(times[name])} and {counted(len(times[BARE]), 'run')}"
            yield f"{name} against bare: time {time}, processor {processor}; medians of {runs}"


def _change(seconds: float, bare: float) -> str:
    return f"{seconds / max(bare, 0.001) - 1:+.1%} ({seconds:.2f} s and {bare:.2f} s)"


_WIDTH, _HEIGHT = 720, 80  # of a panel of the plot


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A line of the plot over the time of a run: `points` are those of SVG's polyline."""

    title: str
    points: str

    @classmethod
    def of(
        cls, title: str, most: float, seconds: float, pairs: Sequence[tuple[float, float]]
    ) -> Panel:
        """Return the line of pairs of time and value; `most` is at its top."""
        points = " ".join(
            f"{at_s / seconds * _WIDTH:.1f},{_HEIGHT - value / most * _HEIGHT:.1f}"
            for at_s, value in pairs
        )
        return cls(title=title, points=points)


def plot_of_run(run: ProgramRun, *, is_page: bool) -> str:
    """Return the samples of a run as an SVG image, or as a page with it."""
    from builder.reports.templates import page_environment  # noqa: PLC0415 - slow to import

    samples, most = run.use.samples, run.use.peak_bytes
    seconds = max(run.use.seconds, 0.001)
    gpus: dict[int, list[tuple[float, float]]] = {}
    for at_s, gpu in ((sample.at_s, gpu) for sample in samples for gpu in sample.gpus):
        gpus.setdefault(gpu.index, []).extend([] if gpu.busy is None else [(at_s, gpu.busy)])
    cpu = [(sample.at_s, sample.cpu) for sample in samples]
    memory = [(sample.at_s, sample.memory_bytes) for sample in samples]
    panels = [
        Panel.of(f"cores busy, of {run.host.cores}", 1, seconds, cpu),
        Panel.of(f"memory, up to {megabytes(most)}", most or 1, seconds, memory),
        *(Panel.of(f"GPU {index} busy", 1, seconds, pairs) for index, pairs in gpus.items()),
    ]
    title = text_of_run(run).partition("\n")[0]
    template, size = page_environment().get_template("run.svg.j2"), (_WIDTH, _HEIGHT)
    return template.render(title=title, panels=panels, seconds=seconds, is_page=is_page, size=size)


# ---- Prometheus ----

# A metric's name, its help text, labels and a value.
_Sample = tuple[str, str, Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """A metric of a value: its name, its help text, its unit in Grafana, and how it is read."""

    name: str
    about: str
    unit: str
    read: Callable[[T], float | None]

    def sample(self, value: T, labels: Mapping[str, str]) -> Iterator[_Sample]:
        """Yield the sample, unless the value is unknown."""
        if (number := self.read(value)) is not None:
            yield self.name, self.about, labels, number


def _ended(run: ProgramRun) -> float:
    return dt.datetime.fromisoformat(run.finished).timestamp()


_OF_USE: tuple[Metric[Use], ...] = (
    Metric("run_seconds", "Time to completion of the last run", "s", lambda use: use.seconds),
    Metric(
        "run_cpu_busy_ratio",
        "Mean share of all cores that was busy",
        "percentunit",
        lambda use: use.cpu,
    ),
    Metric("run_memory_peak_bytes", "Most memory in use", "bytes", lambda use: use.peak_bytes),
)
_OF_GPU: tuple[Metric[GpuUse], ...] = (
    Metric(
        "run_gpu_busy_ratio",
        "Share of the time that the GPU was busy",
        "percentunit",
        lambda gpu: gpu.busy,
    ),
    Metric(
        "run_gpu_memory_peak_bytes",
        "Most memory in use on the GPU",
        "bytes",
        lambda gpu: gpu.memory_bytes,
    ),
    Metric(
        "run_gpu_power_peak_watts", "Most power that the GPU drew", "watt", lambda gpu: gpu.power_w
    ),
)
_OF_RUN: tuple[Metric[ProgramRun], ...] = (
    Metric("run_cpu_seconds", "Processor time of the program", "s", lambda run: run.cpu_seconds),
    Metric("run_start_seconds", "Time to start the container", "s", lambda run: run.start_s),
    Metric("run_exit_status", "Exit status of the program", "none", lambda run: run.status),
    Metric("run_finished_timestamp_seconds", "When the run ended, in Unix time", "", _ended),
)


def metrics_of_runs() -> list[tuple[str, str, str]]:
    """Return name, help text and Grafana's unit of each metric of `exposition_of_run`."""
    metrics = [(each.name, each.about, each.unit) for each in _OF_USE]
    metrics += [(each.name, each.about, each.unit) for each in _OF_GPU]
    metrics += [(each.name, each.about, each.unit) for each in _OF_RUN]
    return [(f"{_RUN_PREFIX}_{name}", about, unit) for name, about, unit in metrics]


def exposition(measured: Measured) -> str:
    """Return all figures in base units, medians over the rounds; ends with a line feed."""
    common = _common(measured.image, measured.arch, measured.emulator)
    return _exposition(_PREFIX, common, _samples(measured))


def exposition_of_run(run: ProgramRun) -> str:
    """Return the figures of a user's program in base units; ends with a line feed."""
    common = _common(run.image, run.arch, run.emulator)
    return _exposition(_RUN_PREFIX, common, _samples_of_run(run))


def _common(image: str, arch: str, emulator: str) -> dict[str, str]:
    return {"image": image, "arch": arch, "emulated": "true" if emulator else "false"}


def _exposition(prefix: str, common: Mapping[str, str], samples: Iterable[_Sample]) -> str:
    from prometheus_client import (  # noqa: PLC0415 - slow to import
        CollectorRegistry,
        Gauge,
        generate_latest,
    )

    registry, gauges = CollectorRegistry(), dict[str, Gauge]()
    for name, about, labels, value in samples:
        if name not in gauges:
            names = (*common, *labels)
            gauges[name] = Gauge(f"{prefix}_{name}", about, names, registry=registry)
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


def _samples_of_run(run: ProgramRun) -> Iterator[_Sample]:
    labels = {"program": Path(program_of(run.argv)).name, "place": run.place.name}
    yield from _samples_of_use(run.use, labels)
    for metric in _OF_RUN:
        yield from metric.sample(run, labels)


def _samples_of_use(use: Use, labels: Mapping[str, str]) -> Iterator[_Sample]:
    for metric in _OF_USE:
        yield from metric.sample(use, labels)
    for gpu in use.gpus:
        for of_gpu in _OF_GPU:
            yield from of_gpu.sample(gpu, {**labels, "gpu": str(gpu.index)})
