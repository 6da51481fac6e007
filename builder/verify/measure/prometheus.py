"""A measurement in Prometheus' text format, for the node exporter's textfile collector.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from builder.verify.measure.values import Measured, OneRun

PREFIX = "build_images_bench"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Family:
    """All samples of one metric: they have to stand together."""

    name: str
    about: str
    samples: tuple[tuple[Mapping[str, str], float], ...]


def exposition(measured: Measured) -> str:
    """All figures in base units, medians over the rounds; ends with a line feed."""
    common = {
        "image": measured.image,
        "arch": measured.arch,
        "emulated": "true" if measured.emulator else "false",
    }
    families = [*_figures(measured), *_compared(measured), *_uses(measured), _when(measured)]
    return "".join(line + "\n" for family in families for line in _lines(family, common))


def _figures(measured: Measured) -> Iterator[_Family]:
    for quantity in dict.fromkeys(row.quantity for row in measured.rows):
        samples = [
            ({"place": row.place}, row.values.median * quantity.scale)
            for row in measured.rows
            if row.quantity == quantity and row.values
        ]
        yield _family(quantity.metric, f"{quantity.title}, median", samples)


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
        yield _family("speed_ratio" if name == "median" else f"speed_{name}_ratio", about, samples)
    collapsed = [
        ({"place": place}, float(one.outcome == "failed"))
        for place, one in measured.outcomes.items()
    ]
    if measured.others:
        busy = statistics.median(measured.others)
        yield _family("others_busy_ratio", "Share of the cores that others kept busy", [({}, busy)])
    yield _family("collapsed", "1 where a figure is far below bare's or missing", collapsed)


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
    yield _family("run_seconds", "Time to completion of the last run", seconds)
    cpu = [(labels, use.cpu) for labels, use in labelled]
    yield _family("run_cpu_busy_ratio", "Share of the time that all cores were busy", cpu)
    memory = [(labels, float(use.memory_bytes)) for labels, use in labelled]
    yield _family("run_memory_peak_bytes", "Most memory in use on the machine", memory)
    gpus = [
        ({**labels, "gpu": str(gpu.index)}, gpu) for labels, use in labelled for gpu in use.gpus
    ]
    busy = [(labels, gpu.busy) for labels, gpu in gpus if gpu.busy is not None]
    yield _family("run_gpu_busy_ratio", "Share of the time that the GPU was busy", busy)
    filled = [(labels, float(gpu.memory_bytes)) for labels, gpu in gpus if gpu.memory_bytes]
    yield _family("run_gpu_memory_peak_bytes", "Most memory in use on the GPU", filled)
    power = [(labels, gpu.power_w) for labels, gpu in gpus if gpu.power_w is not None]
    yield _family("run_gpu_power_peak_watts", "Most power that the GPU drew", power)


def _when(measured: Measured) -> _Family:
    finished = dt.datetime.fromisoformat(measured.finished).timestamp()
    about = "When the measurement ended, in Unix time"
    return _family("finished_timestamp_seconds", about, [({}, finished)])


def _family(name: str, about: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> _Family:
    return _Family(name=f"{PREFIX}_{name}", about=about, samples=tuple(samples))


def _lines(family: _Family, common: Mapping[str, str]) -> Iterator[str]:
    if not family.samples:
        return
    yield f"# HELP {family.name} {_escaped(family.about)}"
    yield f"# TYPE {family.name} gauge"
    for labels, value in family.samples:
        pairs = {**common, **labels}.items()
        named = ",".join(f'{name}="{_quoted(text)}"' for name, text in pairs)
        yield f"{family.name}{{{named}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
