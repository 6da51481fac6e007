"""A measurement in Prometheus' text format, for the node exporter's textfile collector.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Iterator, Mapping, Sequence

from builder.verify.measure.measurement import Measured, OneRun

PREFIX = "build_images_bench"


_Labels = Mapping[str, str]
_Samples = Sequence[tuple[_Labels, float]]
_Family = tuple[str, str, _Samples]  # a metric's name, what it is about, and its samples


def exposition(measured: Measured) -> str:
    """All figures in base units, medians over the rounds; ends with a line feed."""
    from prometheus_client import (  # noqa: PLC0415 - every report would wait for it
        CollectorRegistry,
        Gauge,
        generate_latest,
    )

    common = {
        "image": measured.image,
        "arch": measured.arch,
        "emulated": "true" if measured.emulator else "false",
    }
    registry = CollectorRegistry()
    for name, about, samples in (
        *_figures(measured),
        *_compared(measured),
        *_uses(measured),
        _when(measured),
    ):
        if samples:
            labels = (*common, *samples[0][0])
            gauge = Gauge(f"{PREFIX}_{name}", about, labels, registry=registry)
            for own, value in samples:
                gauge.labels(**common, **own).set(value)
    return generate_latest(registry).decode()


def _figures(measured: Measured) -> Iterator[_Family]:
    for quantity in dict.fromkeys(row.quantity for row in measured.rows):
        samples = [
            ({"place": row.place}, row.values.median * quantity.scale)
            for row in measured.rows
            if row.quantity == quantity and row.values
        ]
        yield (quantity.metric, f"{quantity.title}, median", samples)


def _compared(measured: Measured) -> Iterator[_Family]:
    for name, about in (
        ("median", "Speed as a share of bare's, median of the rounds"),
        ("lowest", "Speed as a share of bare's, slowest round"),
        ("highest", "Speed as a share of bare's, fastest round"),
    ):
        samples = [
            ({"place": row.place, "quantity": row.quantity.name}, float(getattr(row.ratio, name)))
            for row in measured.rows
            if row.ratio
        ]
        yield ("speed_ratio" if name == "median" else f"speed_{name}_ratio", about, samples)
    collapsed = [
        ({"place": place}, float(one.outcome == "failed"))
        for place, one in measured.outcomes.items()
    ]
    if measured.others:
        busy = statistics.median(measured.others)
        yield ("others_busy_ratio", "Share of the cores that others kept busy", [({}, busy)])
    yield ("collapsed", "1 where a figure is far below bare's or missing", collapsed)


def _uses(measured: Measured) -> Iterator[_Family]:
    """Of the last round in which each program ran in each place."""
    last: dict[tuple[str, str], OneRun] = {}
    for run in measured.runs:
        if not run.problem:
            last[run.program, run.place] = run
    labelled = [
        ({"program": program, "place": place}, run.use)
        for (program, place), run in sorted(last.items())
    ]
    seconds = [(labels, use.seconds) for labels, use in labelled]
    yield ("run_seconds", "Time to completion of the last run", seconds)
    cpu = [(labels, use.cpu) for labels, use in labelled]
    yield ("run_cpu_busy_ratio", "Share of the time that all cores were busy", cpu)
    memory = [(labels, float(use.memory_bytes)) for labels, use in labelled]
    yield ("run_memory_peak_bytes", "Most memory in use on the machine", memory)
    gpus = [
        ({**labels, "gpu": str(gpu.index)}, gpu) for labels, use in labelled for gpu in use.gpus
    ]
    busy = [(labels, gpu.busy) for labels, gpu in gpus if gpu.busy is not None]
    yield ("run_gpu_busy_ratio", "Share of the time that the GPU was busy", busy)
    filled = [(labels, float(gpu.memory_bytes)) for labels, gpu in gpus if gpu.memory_bytes]
    yield ("run_gpu_memory_peak_bytes", "Most memory in use on the GPU", filled)
    power = [(labels, gpu.power_w) for labels, gpu in gpus if gpu.power_w is not None]
    yield ("run_gpu_power_peak_watts", "Most power that the GPU drew", power)


def _when(measured: Measured) -> _Family:
    finished = dt.datetime.fromisoformat(measured.finished).timestamp()
    about = "When the measurement ended, in Unix time"
    return ("finished_timestamp_seconds", about, [({}, finished)])
