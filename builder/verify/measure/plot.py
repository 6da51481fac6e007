"""The plot of a measurement: how fast an image is in each format, as a share of bare's speed.

A row for each quantity, a mark for each format at the median of its rounds, on a line from the
slowest to the fastest. Worked out here in the units of the drawing; the template writes SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.model import FAILED, Outcome
from builder.model.records import read
from builder.system.host_facts import HostFacts
from builder.verify.measure.measurement import BARE, Completion, PlaceFacts, Row, Spread
from builder.verify.measure.text import as_cells

WIDTH, LEFT, RIGHT = 860, 330, 24
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
class Tick:
    x: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether a format collapsed; `outcome` is passed or failed."""

    place: str
    outcome: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """All of it. `places` are formats with their marks' shapes; `about` is for who cannot see."""

    width: int
    height: float
    left: int
    top: int
    one: float
    floor: float
    ticks: tuple[Tick, ...]
    lanes: tuple[Lane, ...]
    places: tuple[tuple[str, str], ...]
    verdicts: tuple[Verdict, ...]
    completions: tuple[tuple[str, ...], ...]
    caption: str
    about: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptMeasurement:
    """What a manifest keeps of a measurement, as far as it is shown (`Measured.as_json`)."""

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


def plot_of(kept: Mapping[str, object] | None) -> Plot | None:
    """The plot of what a manifest keeps of a measurement; None if there is none."""
    if not kept:
        return None
    measured = read(KeptMeasurement, kept, "measured")
    places = [one.name for one in measured.places if one.name != BARE]
    rows: dict[str, dict[str, Row]] = {}
    for row in measured.rows:
        rows.setdefault(row.quantity.name, {})[row.place] = row
    axis = _Axis(most=_most(measured.rows))
    lanes = tuple(_lane(index, found, places, axis) for index, found in enumerate(rows.values()))
    height = _TOP + len(lanes) * _lane_height(places) + _BOTTOM
    ticks = [number * _TICK for number in range(int(axis.most / _TICK) + 1)]
    return Plot(
        width=WIDTH,
        height=height,
        left=LEFT,
        top=_TOP,
        one=axis.x(1.0),
        floor=axis.x(measured.floor),
        ticks=tuple(Tick(x=axis.x(one), text=f"{one:g}") for one in ticks),
        lanes=lanes,
        places=tuple(zip(places, MARKS, strict=False)),
        verdicts=tuple(
            Verdict(place=name, outcome=one.outcome, reason=one.reason)
            for name, one in measured.outcomes.items()
        ),
        completions=tuple((one.program, one.place, *as_cells(one)) for one in measured.completions),
        caption=_caption(measured),
        about=_about(measured, places),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    most: float

    def x(self, ratio: float) -> float:
        share = min(max(ratio, 0.0), self.most) / self.most
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def _most(rows: Sequence[Row]) -> float:
    """The end of the axis: a whole tick that shows every line, within bounds."""
    highest = max((row.ratio.highest for row in rows if row.ratio), default=_LEAST)
    ticks = int(min(max(highest, _LEAST), _MOST) / _TICK + 0.999)
    return ticks * _TICK


def _lane_height(places: Sequence[str]) -> int:
    return _LANE * len(places) + _GAP


def _lane(index: int, found: Mapping[str, Row], places: Sequence[str], axis: _Axis) -> Lane:
    top = _TOP + index * _lane_height(places) + _GAP / 2
    bare = found[BARE]
    quantity, values = bare.quantity, bare.values
    marks = []
    for number, (place, shape) in enumerate(zip(places, MARKS, strict=False)):
        ratio = found[place].ratio
        if ratio and not found[place].problem:
            y = top + (number + 0.5) * _LANE
            marks.append(_mark(f"{quantity.title}, {place}", shape, ratio, y, axis))
    return Lane(
        label=quantity.title,
        bare=f"{_figures(values.median)} {quantity.unit}" if values else "no result",
        y=top + _LANE * len(places) / 2,
        marks=tuple(marks),
        cells=tuple(_cell(found[place]) for place in places),
    )


def _mark(name: str, shape: str, ratio: Spread, y: float, axis: _Axis) -> Mark:
    return Mark(
        shape=shape,
        x=axis.x(ratio.median),
        low=axis.x(ratio.lowest),
        high=axis.x(ratio.highest),
        y=y,
        is_beyond=ratio.highest > axis.most,
        text=f"{name}: {_ratio(ratio)}",
    )


def _cell(row: Row) -> str:
    return row.problem or (_ratio(row.ratio) if row.ratio else "")


def _ratio(ratio: Spread) -> str:
    return f"{ratio.median:.2f} ({ratio.lowest:.2f} to {ratio.highest:.2f})"


def _figures(value: float) -> str:
    whole = 100
    return f"{value:.0f}" if value >= whole else f"{value:#.3g}"


def _caption(measured: KeptMeasurement) -> str:
    host = measured.host
    ran = f"emulated by {measured.emulator}, bare as well" if measured.emulator else "native"
    return (
        f"{measured.repeats} rounds by turns, {ran}, {measured.started[:10]}; {host.cpu}, "
        f"{host.cores} cores, {host.os}, {host.kernel}. Bare: {measured.bare}."
    )


def _about(measured: KeptMeasurement, places: Sequence[str]) -> str:
    failed = [name for name, one in measured.outcomes.items() if one.outcome == FAILED]
    verdict = f"collapsed: {', '.join(failed)}" if failed else "none collapsed"
    return (
        f"Speed in {', '.join(places)} as a share of bare's, for each quantity the median and the "
        f"range of the rounds; {verdict}. The table below has the numbers."
    )
