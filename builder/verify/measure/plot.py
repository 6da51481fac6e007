"""The plot of a measurement: how fast an image is in each format, as a share of bare's speed.

A row for each quantity, a mark for each format at the median of its rounds, on a line from the
slowest to the fastest. Worked out here in the units of the drawing; the template writes SVG.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.model import FAILED, Outcome
from builder.model.records import read
from builder.system.host_facts import HostFacts
from builder.verify.measure.measurement import BARE, Completion, PlaceFacts, Row
from builder.verify.measure.text import as_cells, by_quantity, ratio_of, value_of

_WIDTH, _LEFT, _RIGHT = 860, 330, 24
_TOP, _LANE, _GAP, _BOTTOM = 34, 13, 14, 34
_LEAST, _MOST, _TICK = 1.25, 2.0, 0.25  # of the axis, in shares of bare
MARKS = ("circle", "square", "diamond", "triangle", "cross")  # told apart without colours, too


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A format's result: `x` in the drawing, from `low` to `high`; `text` says it in words."""

    shape: str
    x: float
    low: float
    high: float
    y: float
    is_beyond: bool
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """A quantity: the label at `y`, and the marks of the formats below each other."""

    label: str
    bare: str
    y: float
    marks: tuple[Mark, ...]
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """All of it. `ticks` are places on the axis with their texts, `places` formats with the shapes
    of their marks, `outcomes` whether they collapsed; `about` is for those who cannot see.
    """

    width: int
    height: float
    left: int
    top: int
    one: float
    floor: float
    ticks: tuple[tuple[float, str], ...]
    lanes: tuple[Lane, ...]
    places: tuple[tuple[str, str], ...]
    outcomes: Mapping[str, Outcome]
    completions: tuple[tuple[str, ...], ...]
    caption: str
    about: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestMeasurement:
    """A measurement in a manifest, as far as it is shown (`Measured.as_json`)."""

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


def plot_of(document: Mapping[str, object] | None) -> Plot | None:
    """Return the plot of a manifest's measurement, if it has one."""
    if not document:
        return None
    measured = read(ManifestMeasurement, document, "measured")
    names = [place.name for place in measured.places if place.name != BARE]
    most = _end_of_axis(measured.rows)
    quantities = by_quantity(measured.rows)
    return Plot(
        width=_WIDTH,
        height=_TOP + len(quantities) * (_LANE * len(names) + _GAP) + _BOTTOM,
        left=_LEFT,
        top=_TOP,
        one=_x(1.0, most),
        floor=_x(measured.floor, most),
        ticks=tuple(
            (_x(number * _TICK, most), f"{number * _TICK:g}")
            for number in range(int(most / _TICK) + 1)
        ),
        lanes=tuple(_lane(index, rows, names, most) for index, rows in enumerate(quantities)),
        places=tuple(zip(names, MARKS, strict=False)),
        outcomes=measured.outcomes,
        completions=tuple(
            (completion.program, completion.place, *as_cells(completion))
            for completion in measured.completions
        ),
        caption=_caption(measured),
        about=_about(measured, names),
    )


def _x(ratio: float, most: float) -> float:
    share = min(max(ratio, 0.0), most) / most
    return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def _end_of_axis(rows: Sequence[Row]) -> float:
    """Return a tick that shows every line, within bounds."""
    highest = max((row.ratio.highest for row in rows if row.ratio), default=_LEAST)
    return math.ceil(min(max(highest, _LEAST), _MOST) / _TICK) * _TICK


def _lane(index: int, rows: Mapping[str, Row], names: Sequence[str], most: float) -> Lane:
    top = _TOP + index * (_LANE * len(names) + _GAP) + _GAP / 2
    marks = []
    for number, (name, shape) in enumerate(zip(names, MARKS, strict=False)):
        ratio = rows[name].ratio
        if ratio and not rows[name].problem:
            mark = Mark(
                shape=shape,
                x=_x(ratio.median, most),
                low=_x(ratio.lowest, most),
                high=_x(ratio.highest, most),
                y=top + (number + 0.5) * _LANE,
                is_beyond=ratio.highest > most,
                text=f"{rows[name].quantity.title}, {name}: {ratio_of(ratio)}",
            )
            marks.append(mark)
    return Lane(
        label=rows[BARE].quantity.title,
        bare=value_of(rows[BARE]),
        y=top + _LANE * len(names) / 2,
        marks=tuple(marks),
        cells=tuple(
            rows[name].problem or (ratio_of(ratio) if (ratio := rows[name].ratio) else "")
            for name in names
        ),
    )


def _caption(measured: ManifestMeasurement) -> str:
    host = measured.host
    ran = f"emulated by {measured.emulator}, bare as well" if measured.emulator else "native"
    return (
        f"{measured.repeats} rounds by turns, {ran}, {measured.started[:10]}; {host.cpu}, "
        f"{host.cores} cores, {host.os}, {host.kernel}. Bare: {measured.bare}."
    )


def _about(measured: ManifestMeasurement, names: Sequence[str]) -> str:
    collapsed = [name for name, check in measured.outcomes.items() if check.outcome == FAILED]
    outcome = f"collapsed: {', '.join(collapsed)}" if collapsed else "none collapsed"
    return (
        f"Speed in {', '.join(names)} as a share of bare's, for each quantity the median and the "
        f"range of the rounds; {outcome}. The table below has the numbers."
    )
