"""The plot of a measurement: how fast an image is in each format, as a share of bare's speed.

A row for each quantity, a mark for each format at the median of its rounds, on a line from the
slowest to the fastest. The report's template draws it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from builder.model import FAILED, Outcome
from builder.model.records import read
from builder.system.host_facts import HostFacts
from builder.verify.measure.measurement import BARE, Completion, PlaceFacts, Row
from builder.verify.measure.text import by_quantity

TICK = 0.25  # between ticks of the axis, in shares of bare
_LEAST, _MOST = 1.25, 2.0  # of the axis


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
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

    @property
    def formats(self) -> list[str]:
        return [place.name for place in self.places if place.name != BARE]

    @property
    def quantities(self) -> list[dict[str, Row]]:
        """The rows of each quantity by place, bare first."""
        return by_quantity(self.rows)

    @property
    def ticks(self) -> list[float]:
        """The ticks of the axis: the last one shows every line, within bounds."""
        highest = max((row.ratio.highest for row in self.rows if row.ratio), default=_LEAST)
        last = math.ceil(min(max(highest, _LEAST), _MOST) / TICK)
        return [number * TICK for number in range(last + 1)]

    @property
    def caption(self) -> str:
        host = self.host
        ran = f"emulated by {self.emulator}, bare as well" if self.emulator else "native"
        return (
            f"{self.repeats} rounds by turns, {ran}, {self.started[:10]}; {host.cpu}, "
            f"{host.cores} cores, {host.os}, {host.kernel}. Bare: {self.bare}."
        )

    @property
    def about(self) -> str:
        """The plot in words, for those who cannot see it."""
        collapsed = [name for name, check in self.outcomes.items() if check.outcome == FAILED]
        outcome = f"collapsed: {', '.join(collapsed)}" if collapsed else "none collapsed"
        return (
            f"Speed in {', '.join(self.formats)} as a share of bare's, for each quantity the "
            f"median and the range of the rounds; {outcome}. The table below has the numbers."
        )


def plot_of(document: Mapping[str, object] | None) -> Plot | None:
    """Return the plot of a manifest's measurement, if it has one."""
    return read(Plot, document, "measured") if document else None
