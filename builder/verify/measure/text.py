"""A measurement as text: tables of ratios and of what runs took, and Prometheus' text format.

The latter is for the node exporter's textfile collector:
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Iterator, Mapping, Sequence

from builder.model.errors import counted
from builder.verify.measure.measurement import BARE, Measured, Row

_PREFIX = "build_images_bench"


def as_text(measured: Measured) -> str:
    """Return the tables, with the outcome of each format below them."""
    return "\n".join(
        [
            *_head(measured),
            "",
            *_ratios(measured),
            "",
            "Bare's median, and how fast each format is: its share of bare's speed in the same",
            "round, median (lowest to highest). More is faster, also where the unit is a time.",
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
        yield f"DISTURBED: others kept the cores busy before the rounds: {shares}"
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


# ---- Prometheus ----

_Samples = Sequence[tuple[Mapping[str, str], float]]
_Family = tuple[str, str, _Samples]  # a metric's name, what it is about, and its samples


def exposition(measured: Measured) -> str:
    """Return all figures in base units, medians over the rounds; ends with a line feed."""
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
    for name, about, samples in (*_figures(measured), *_shares(measured), *_uses(measured)):
        if samples:
            labels = (*common, *samples[0][0])
            gauge = Gauge(f"{_PREFIX}_{name}", about, labels, registry=registry)
            for own, value in samples:
                gauge.labels(**common, **own).set(value)
    return generate_latest(registry).decode()


def _figures(measured: Measured) -> Iterator[_Family]:
    for rows in by_quantity(measured.rows):
        quantity = rows[BARE].quantity
        samples = [
            ({"place": place}, row.values.median * quantity.scale)
            for place, row in rows.items()
            if row.values
        ]
        yield quantity.metric, f"{quantity.title}, median", samples


def _shares(measured: Measured) -> Iterator[_Family]:
    for field, name, about in (
        ("median", "speed_ratio", "median of the rounds"),
        ("lowest", "speed_lowest_ratio", "slowest round"),
        ("highest", "speed_highest_ratio", "fastest round"),
    ):
        samples = [
            ({"place": row.place, "quantity": row.quantity.name}, float(getattr(row.ratio, field)))
            for row in measured.rows
            if row.ratio
        ]
        yield name, f"Speed as a share of bare's, {about}", samples
    if measured.others:
        busy = statistics.median(measured.others)
        yield "others_busy_ratio", "Share of the cores that others kept busy", [({}, busy)]
    collapsed = [
        ({"place": place}, float(check.outcome == "failed"))
        for place, check in measured.outcomes.items()
    ]
    yield "collapsed", "1 where a figure is far below bare's or missing", collapsed


def _uses(measured: Measured) -> Iterator[_Family]:
    """Yield the use of the last round in which each program ran in each place."""
    last = {(run.program, run.place): run.use for run in measured.runs if not run.problem}
    uses = [
        ({"program": program, "place": place}, use)
        for (program, place), use in sorted(last.items(), key=lambda item: item[0])
    ]
    gpus = [({**labels, "gpu": str(gpu.index)}, gpu) for labels, use in uses for gpu in use.gpus]
    for field, name, about in (
        ("seconds", "run_seconds", "Time to completion of the last run"),
        ("cpu", "run_cpu_busy_ratio", "Share of the time that all cores were busy"),
        ("memory_bytes", "run_memory_peak_bytes", "Most memory in use on the machine"),
    ):
        yield name, about, [(labels, float(getattr(use, field))) for labels, use in uses]
    for field, name, about in (
        ("busy", "run_gpu_busy_ratio", "Share of the time that the GPU was busy"),
        ("memory_bytes", "run_gpu_memory_peak_bytes", "Most memory in use on the GPU"),
        ("power_w", "run_gpu_power_peak_watts", "Most power that the GPU drew"),
    ):
        values = [(labels, getattr(gpu, field)) for labels, gpu in gpus]
        yield name, about, [(labels, value) for labels, value in values if value is not None]
    finished = dt.datetime.fromisoformat(measured.finished).timestamp()
    about = "When the measurement ended, in Unix time"
    yield "finished_timestamp_seconds", about, [({}, finished)]
